//! The life cycle of the program: flags, errors for bad input, signals, reloads under load, and
//! leftovers.

mod addresses;
mod bad_input;
mod command_line;
mod hanging;
mod image;
mod packages;
mod packages_rpm;
mod reload;
mod secrets;
mod signals;
mod sockets;
mod stop_in_reload;
mod swaps;
mod systemd;
mod variables;
mod watchdog;

use std::process::{Child, Command, Output};
use std::time::Duration;

use tests::{assert_contains, binary, output, tempdir};

/// Runs the program to its end; it must not serve.
fn localdns(args: &[&str]) -> Output {
    let directory = tempdir();
    let mut command = Command::new(binary());
    command.args(args).current_dir(directory.path());
    output(command, Duration::from_secs(10))
}

/// A process that is killed on drop.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn text(octets: &[u8]) -> String {
    String::from_utf8_lossy(octets).into_owned()
}

fn assert_one_line(output: &Output, words: &[&str]) {
    let printed = text(&output.stderr);
    assert!(printed.lines().count() <= 2, "reported at length:\n{printed}");
    for word in words {
        assert_contains!(printed, word);
    }
}
