//! Restarts and upgrades under load: no query is lost, and every answer is correct.

mod clients;
mod hostile;
mod place;
mod store;
mod upgrade;
mod warm;
