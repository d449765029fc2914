//! Hosts text to an index of ready answers
