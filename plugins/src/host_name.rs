//! The host's name.

use std::ffi::CStr;

/// Returns the host's current name from the kernel; `localhost` if the host has none.
pub(crate) fn host_name() -> String {
    name_or_localhost(rustix::system::uname().nodename())
}

fn name_or_localhost(name: &CStr) -> String {
    match name.to_bytes() {
        b"" => "localhost".to_owned(),
        name => String::from_utf8_lossy(name).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_without_name_is_localhost() {
        for (name, expected) in [(c"", "localhost"), (c"node-1", "node-1")] {
            assert_eq!(name_or_localhost(name), expected);
        }
    }
}
