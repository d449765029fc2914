//! A cluster's objects, as its API tells them: lists, watches, and compact records of what they hold.
//!
//! The one crate that knows the Kubernetes API. Each object is handed over as it is decoded ([`Sink`]), and none is kept;
//! what becomes of it, and DNS, are not known here.

pub mod decode;
pub mod objects;
mod sanitize;
pub mod selector;
pub mod settings;
mod sink;
mod watch;

pub use decode::Unreadable;
pub use objects::{Kind, Object, ObjectKey};
pub use selector::Selector;
pub use settings::{Access, ClientFiles, Fault, Lost, Pace, PodsWanted, SERVICE_ACCOUNT, Settings, Wants};
pub use sink::{Asked, Sink};
pub use watch::{Following, annotate, follow};
