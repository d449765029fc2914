//! A Corefile made ready to serve, built aside and swapped in whole.
//!
//! ```text
//! Spec -> addresses -> blocks with their pipelines -> a route for each listen address
//! ```
//! Nothing here binds a socket. What must outlive a reload (cache, upstreams' health, hosts tables, counters) comes from
//! [`Shared`] and is found again by its identity.

mod build;
mod circles;
mod explain;
mod serving;
mod shared;
mod tls;

pub use build::{AddressesOf, zones_label};
pub use circles::{judge_again, ourselves};
pub use explain::{Explain, explain};
pub use serving::{AdminPlan, Configuration, EndpointPlan};
pub use shared::Shared;
