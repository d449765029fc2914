//! Restarts and upgrades under load: no query is lost, none is answered wrongly.

mod clients;
mod hostile;
mod place;
mod store;
mod upgrade;
mod warm;
