//! Simulates a kernel older than this machine's for one program.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::binary::binary;
use crate::command::output;
use crate::isolated::{skip, tool};
use crate::server::Options;

/// A library preloaded into a program that changes its requests to nftables: a feature that the
/// older kernel lacks is requested in a form that this kernel does not know either. So each refusal
/// is by the real kernel.
#[derive(Debug)]
pub struct OlderKernel {
    library: PathBuf,
    lacks: &'static str,
}

impl OlderKernel {
    /// Compiles the library in `directory`. `lacks` names the missing features: `owner` for tables
    /// removed with their process, `socket` for the socket expression, or both. Returns `None` and
    /// prints the reason where it cannot work.
    ///
    /// # Panics
    /// When it does not compile.
    pub fn new(test: &str, directory: &Path, lacks: &'static str) -> Option<Self> {
        if !tool(test, "cc") {
            return None;
        }
        let mut head = Vec::new();
        let binary = File::open(binary()).expect("the binary is built");
        binary.take(4096).read_to_end(&mut head).expect("it can be read");
        // The name of the dynamic loader is near the beginning of the file.
        if !head.windows(4).any(|word| word == b"/ld-") {
            skip(test, "the binary is static: nothing can be loaded before it");
            return None;
        }
        let [source, library] = ["older_kernel.c", "older_kernel.so"].map(|name| directory.join(name));
        std::fs::write(&source, SOURCE).expect("the directory is the test's own");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-o"]).args([&library, &source]).arg("-ldl");
        let compiled = output(cc, Duration::from_secs(60));
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        Some(Self { library, lacks })
    }

    /// The environment variables that make a program run as on the older kernel.
    pub fn variables(&self) -> [(&'static str, String); 2] {
        [("LD_PRELOAD", self.library.to_string_lossy().into_owned()), ("LACKS", self.lacks.to_owned())]
    }

    /// Options for a server on this kernel.
    pub fn under(&self, options: Options) -> Options {
        self.variables().iter().fold(options, |options, (name, value)| options.env(name, value))
    }
}

const SOURCE: &str = include_str!("older_kernel.c");
