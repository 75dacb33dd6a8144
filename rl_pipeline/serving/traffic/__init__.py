"""What obeys a controller: adapters of the port `rl_pipeline.deployment.traffic.TrafficController`."""
