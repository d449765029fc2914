//! Median and range of a few figures.

/// Median, smallest and largest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The median: half of the figures lie below, half above.
    pub median: f64,
    /// The smallest figure.
    pub min: f64,
    /// The largest figure.
    pub max: f64,
}

impl Spread {
    /// Returns the spread of the figures; `None` when there is none.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut figures: Vec<f64> = figures.into_iter().collect();
        figures.sort_by(f64::total_cmp);
        let (min, max) = (*figures.first()?, *figures.last()?);
        let upper = figures.len() / 2;
        let lower = (figures.len() - 1) / 2;
        Some(Self { median: f64::midpoint(figures[lower], figures[upper]), min, max })
    }

    /// Returns the text for the table, `median (min-max)`, each figure divided by `unit`.
    pub fn show(&self, unit: f64, digits: usize) -> String {
        let [median, min, max] = [self.median / unit, self.min / unit, self.max / unit];
        format!("{median:.digits$} ({min:.digits$}-{max:.digits$})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_a_few_figures() {
        for (figures, expected) in [
            (vec![], None),
            (vec![3.0], Some((3.0, 3.0, 3.0))),
            (vec![4.0, 1.0], Some((2.5, 1.0, 4.0))),
            (vec![9.0, 1.0, 2.0], Some((2.0, 1.0, 9.0))),
            (vec![9.0, 1.0, 2.0, 4.0], Some((3.0, 1.0, 9.0))),
        ] {
            let expected = expected.map(|(median, min, max)| Spread { median, min, max });
            assert_eq!(Spread::of(figures), expected);
        }
        let spread = Spread { median: 1500.0, min: 1000.0, max: 2499.0 };
        assert_eq!(spread.show(1000.0, 1), "1.5 (1.0-2.5)");
    }
}
