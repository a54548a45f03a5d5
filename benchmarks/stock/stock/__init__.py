"""An ordinary Flower app: the digits, a net as large as ``mlp4``, FedAvg, and how long each round took."""
