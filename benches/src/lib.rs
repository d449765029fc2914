//! Load generator and measurements
