"""Client drift, as the analysis of SpecGradFilter (arXiv 2607.04189) looks at it.

``bands``       distances between clients in each frequency band
``divergence``  how far clients are from their mean, absolutely and relatively, and their cosines
``cka``         whether local models see data alike
``comparison``  all of it over a round's gradients, tensor by tensor

These are numbers to look at; nothing here weighs or moves a model.
"""
