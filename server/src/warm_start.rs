//! Warm start: cache entries and refreshed names for the next process.
//!
//! ```text
//! length of the cache's answers (4) | answers | for each hosts file: length (4) | path | length (4) | section of its names
//! ```

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use configuration::Configuration;
use handover::memfd;
use listen::ServerState;

/// Exports state for the next process. An error is logged, and the next process starts with an
/// empty cache.
pub(crate) fn leave(running: &ServerState) -> Option<OwnedFd> {
    let now = clock::now();
    let mut names = Vec::new();
    for kept in running.shared.hosts.kept.all() {
        let before = names.len();
        put(&mut names, kept.file().as_os_str().as_bytes());
        put(&mut names, &kept.section(now));
        if names.len() > MOST_NAMES {
            names.truncate(before);
            let text =
                format!("the next process starts without the learned addresses of {}", kept.file().display());
            running.logger.warning(None, &text);
        }
    }
    let answers = running.shared.cache.export(now, memfd::MAX_BYTES - LENGTH - names.len());
    let mut octets = Vec::with_capacity(LENGTH + answers.len() + names.len());
    put(&mut octets, &answers);
    octets.extend(names);
    let left = memfd::seal(&octets, clock::since_boot());
    let warn = |error| {
        running.logger.warning(None, &format!("the next process starts with an empty cache: {error}"))
    };
    left.map_err(warn).ok()
}

/// Imports the previous process's state for the blocks and hosts files of this configuration. The
/// hosts files must have been read.
pub(crate) fn take(configuration: &Configuration, running: &ServerState, left: OwnedFd) {
    let logger = &running.logger;
    let refused = |why: &str| {
        logger.warning(
            None,
            &format!("the cache starts empty: the previous process's export is not readable: {why}"),
        )
    };
    let (octets, since) = match memfd::unseal(left, clock::since_boot()) {
        Ok(read) => read,
        Err(error) => return refused(&error.to_string()),
    };
    let read = split(&octets).and_then(|(answers, names)| Some((cache::Export::read(answers)?, names)));
    let Some((dump, mut names)) = read else { return refused("it is truncated") };
    let now = clock::now();
    let caches = configuration.blocks.iter().filter_map(|block| block.pipeline.forwarding()?.cache.as_ref());
    let taken: usize = caches.map(|cache| cache.import(&dump, since, now)).sum();
    logger.info(None, &format!("the cache starts with {taken} answers of the previous process"));
    let hosts = &running.shared.hosts;
    while let Some((path, rest)) = split(names) {
        let Some((section, rest)) = split(rest) else { break };
        names = rest;
        let Some(kept) = hosts.kept.find(Path::new(OsStr::from_bytes(path))) else { continue };
        if kept.inherit(section, now) {
            hosts.serve(&kept);
            let file = kept.file().display();
            logger.info(Some("hosts"), &format!("names of {file} are known from the previous process"));
        }
    }
}

/// Appends a part after its length.
fn put(octets: &mut Vec<u8>, part: &[u8]) {
    // The length of a part fits 32 bits, since the whole export is bounded well below 4 GiB.
    octets.extend((part.len() as u32).to_le_bytes());
    octets.extend(part);
}

/// Returns the next part, and the rest.
fn split(octets: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = octets.split_first_chunk()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

/// Bytes of a part's length.
const LENGTH: usize = 4;
/// Maximum bytes of exported names: about two hundred bytes for each of ten thousand names.
const MOST_NAMES: usize = 2 << 20;
