//! Tests of the public interface with a scripted clock.

mod export;
mod load;
mod model;
mod scenarios;
mod stale;
