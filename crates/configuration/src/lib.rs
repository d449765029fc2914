//! Builds a [`Configuration`] from a Corefile's [`Spec`](plugin::Spec), while the previous one serves.
//!
//! ```text
//! Spec -> addresses -> blocks with their pipelines -> a route for each listen address
//! ```
//! Binds no socket. State that outlives a reload (cache, upstreams' health, hosts tables, counters)
//! is in [`PersistentState`], and is found again by its identity.

mod build;
mod configuration;
mod explain;
mod forward_loops;
mod reload_state;
mod tls;

pub use build::{AddressesOf, zones_label};
pub use configuration::{AdminPlan, Configuration, EndpointPlan};
pub use explain::{Explain, explain};
pub use forward_loops::{looping, recheck};
pub use reload_state::PersistentState;
