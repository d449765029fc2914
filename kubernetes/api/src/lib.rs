//! Client of the Kubernetes API: lists and watches the objects of a cluster and decodes them into
//! compact records.
//!
//! This is the only crate that knows the Kubernetes API. Each object is passed to a [`Sink`] when
//! it is decoded, and is not stored. The crate knows neither DNS nor the index.

pub mod decode;
pub mod objects;
mod sanitize;
pub mod selector;
pub mod settings;
mod sink;
mod watch;

pub use decode::DecodeError;
pub use objects::{Kind, Object, ObjectKey};
pub use selector::Selector;
pub use settings::{
    Access, ClientFiles, ClientSettings, ConnectionFault, PodWatch, RateLimit, SERVICE_ACCOUNT, ShownText,
    WatchConfig, WatchError,
};
pub use sink::{RequestMetrics, Sink};
pub use watch::{WatchHandle, annotate, follow, printable_url};
