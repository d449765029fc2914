//! The machine around the server
