//! A warm start: what the cache knows goes over to the next process.

use std::os::fd::OwnedFd;

use configuration::Configuration;
use handover::memory;
use listen::Running;

/// Copies the answers of the cache for the next process; what fails is told, for that one starts cold then.
pub(crate) fn leave(running: &Running) -> Option<OwnedFd> {
    let answers = running.shared.cache.dump(clock::now(), memory::MOST_OCTETS);
    let left = memory::seal(&answers, clock::since_boot());
    let told =
        |error| running.logger.warning(None, &format!("the next process starts without answers: {error}"));
    left.map_err(told).ok()
}

/// Takes over the answers that the process before left for the blocks of this configuration.
pub(crate) fn take(configuration: &Configuration, running: &Running, left: OwnedFd) {
    let logger = &running.logger;
    let refused = |why: &str| {
        logger.warning(None, &format!("the cache starts empty, what was left does not read: {why}"))
    };
    let (octets, since) = match memory::unseal(left, clock::since_boot()) {
        Ok(read) => read,
        Err(error) => return refused(&error.to_string()),
    };
    let Some(dump) = cache::Dump::read(&octets) else { return refused("it is cut off") };
    let now = clock::now();
    let caches = configuration.blocks.iter().filter_map(|block| block.pipeline.forwarding()?.cache.as_ref());
    let taken: usize = caches.map(|cache| cache.partition.warm(&cache.policy, &dump, since, now)).sum();
    logger.info(None, &format!("the cache starts with {taken} answers of the process before"));
}
