//! The crate `kubernetes` beside APIs: the real one, and one that does as it is told.

mod annotated;
mod bad_input;
mod causes;
mod container;
mod deployed;
mod gone;
mod kept;
mod kube_dns;
mod kubeadm;
mod lab;
mod lies;
mod pages;
mod paths;
mod real;
mod resolvers;
mod rows;
mod said;
mod search;
mod seen;
mod served;
mod shown;
mod slow;
mod storm;
mod tokens;
mod told;
mod zone;
