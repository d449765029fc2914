//! A DNS server for Kubernetes nodes that reads CoreDNS's Corefile
