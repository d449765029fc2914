//! Upstreams: policy, health, retries, hedges, single flight
