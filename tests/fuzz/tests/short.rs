//! Every target on its seeds and plain mutations of them, in seconds. `tests/fuzz/run` is the long
//! run.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use fuzz::{Mutator, TARGETS};

#[test]
fn seeds_and_mutations_pass() {
    let seed: u64 = std::env::var("FUZZ_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    for (name, target) in TARGETS {
        let seeds = seeds(name);
        let mut mutator = Mutator::new(seed);
        for input in &seeds {
            attempt(name, target, input);
        }
        for _ in 0..MUTATIONS {
            let (one, other) = (mutator.below(seeds.len()), mutator.below(seeds.len()));
            attempt(name, target, &mutator.change(&seeds[one], &seeds[other]));
        }
    }
}

#[test]
fn every_target_has_a_fuzzer() {
    let manifest = include_str!("../libfuzzer/Cargo.toml");
    for (name, _) in TARGETS {
        assert!(manifest.contains(&format!("path = \"targets/{name}.rs\"")), "{name}");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("libfuzzer/targets/{name}.rs"));
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(text.contains(&format!("fuzz::{name}(")), "{name}");
    }
}

#[test]
fn broken_invariant_is_noticed() {
    fn breaks(octets: &[u8]) {
        assert!(octets.len() < 3);
    }
    let caught = catch_unwind(|| attempt("breaks", breaks, b"abc"));
    assert!(caught.is_err());
}

fn attempt(name: &str, target: fuzz::Target, input: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| target(input))).is_err() {
        panic!("{name} breaks on {:?}", input.escape_ascii().to_string());
    }
}

fn seeds(name: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
    let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a seed").path()).collect();
    paths.sort();
    assert!(paths.len() >= 5, "{name} has few seeds");
    paths.iter().map(|path| fs::read(path).expect("a seed")).collect()
}

/// For each target: a few seconds for all, unoptimised.
const MUTATIONS: usize = 4_000;
