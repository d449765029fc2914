//! Size classes of the allocator.

/// Upper bound of the bytes that malloc takes for `size` bytes: a header of 8, steps of 16 up to
/// 128, then eighths of a power of two. glibc rounds to 16 throughout, so it takes no more.
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
