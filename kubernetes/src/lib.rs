//! A cluster's objects, as its API tells them, and what the cluster's zone answers of them.
//!
//! The one crate that knows the Kubernetes API: the rest sees compact records ([`objects`]) or an index of
//! answers. What follows the API hands each object over as it is decoded ([`Sink`]) and keeps none.

mod answer;
pub mod decode;
pub mod index;
pub mod objects;
pub mod selector;
pub mod settings;
pub mod snapshot;
#[cfg(test)]
mod testing;
mod watch;

pub use answer::{Answered, External, ExternalRules, Lent, Pods, Push, Responder, Rules, Transfer};
pub use index::{Index, Writer};
pub use objects::{Asked, Key, Kind, Object, Sink};
pub use selector::Selector;
pub use settings::{Access, ClientFiles, Lost, Pace, PodsWanted, SERVICE_ACCOUNT, Settings, Wants};
pub use watch::{Following, follow};
