"""The report of a run, from its ledger alone.

::

    writing     the files: report.html, .json, .csv
    run_view    what a ledger says of a run; drift_view what its measurements of drift do
    page        the web page, of sections: charts, drift, parts; style its looks
    svg         charts of lines; markup HTML that foreign text cannot break
"""
