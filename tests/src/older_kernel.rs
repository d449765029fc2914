//! A kernel that is older than that of this machine, for one program.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::binary::binary;
use crate::isolated::{skip, tool};
use crate::server::{Options, output};

/// A library that is loaded before a program and stands between it and nftables: what the older kernel lacks is asked of this
/// one in words that it does not know either, so that each refusal is the kernel's own, and nothing is there that would not be.
#[derive(Debug)]
pub struct OlderKernel {
    library: PathBuf,
    lacks: &'static str,
}

impl OlderKernel {
    /// Compiles the library there. `lacks` names what there is not: `owner` for tables that go with their process, `socket` for
    /// the expression that looks for one, or both. `None`, and a word on why, where that cannot be.
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
        // The name of what loads it stands near its beginning.
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

    /// The variables of a program that has this kernel.
    pub fn variables(&self) -> [(&'static str, String); 2] {
        [("LD_PRELOAD", self.library.to_string_lossy().into_owned()), ("LACKS", self.lacks.to_owned())]
    }

    /// A server that has this kernel.
    pub fn under(&self, options: Options) -> Options {
        self.variables().iter().fold(options, |options, (name, value)| options.env(name, value))
    }
}

const SOURCE: &str = include_str!("older_kernel.c");
