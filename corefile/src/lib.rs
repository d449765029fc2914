//! Corefile text to server blocks
