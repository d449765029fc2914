//! The program `localdns`.

fn main() {}
