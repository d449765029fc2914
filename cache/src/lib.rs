//! The answer cache
