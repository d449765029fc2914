//! The cache as its callers see it, on a scripted clock.

mod load;
mod model;
mod over;
mod scenarios;
mod stale;
