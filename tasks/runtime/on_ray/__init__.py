"""A stage spread over Ray: the cluster, its workers, jobs, pools of models and the actors that all of them share."""
