"""The names of the slots in which the two halves of an algorithm meet.

Each holds tensors of the model's names and shapes. A contract test compares who sends and who reads what.
"""

# From the server to the nodes, beside the model.
CONTROL = "control"  # SCAFFOLD's c, and the name of c_i in a node's memory
DIRECTION = "direction"  # FedCM's v: the mean direction of the last round's steps
PERTURBATION = "perturbation"  # FedSMOO's s

# From the nodes to the server, beside the update.
CONTROL_CHANGE = "control-change"  # how much c_i changed, where the server cannot compute it
SHIFT = "shift"  # what the server adds to a participant's model before it averages
ASCENT_DUAL = "ascent-dual"  # FedSMOO's mu_i
GRADIENT = "gradient"  # of all of a node's rows at the received model, for diagnostics

# In a node's memory alone.
DUAL = "dual"  # FedDyn's lambda_i
DRIFT = "drift"  # FedDC's h_i
LAST_MODEL = "last-model"  # FedLESAM: the global model that was received last
LAST_DIRECTION = "last-direction"  # of the step before, within a round
