//! What allocations cost.

/// Bytes that an allocation of `size` bytes takes: a header of 8, then steps of 16 up to 128 and eighths of a power of
/// two above. glibc's malloc rounds up to 16 throughout, so this never counts less than it takes.
pub(crate) const fn allocated(size: usize) -> usize {
    match size {
        0 => 0,
        1..=23 => 32,
        24..=120 => (size + 8).next_multiple_of(16),
        _ => {
            let size = size + 8;
            let step = size.next_power_of_two() / 16;
            size.next_multiple_of(if step < 16 { 16 } else { step })
        }
    }
}
