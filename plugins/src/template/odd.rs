//! Warnings about constant record texts that are no records.

use std::cell::Cell;

use gotemplate::{Fields, Value};
use plugin::Spec;

use super::{PLUGIN, Record, TemplateSpecs};

/// Warnings about invalid records that do not depend on the query, with their place.
pub fn odd(spec: &Spec) -> impl Iterator<Item = String> {
    spec.blocks.iter().filter_map(|block| block.get::<TemplateSpecs>()).flat_map(TemplateSpecs::odd)
}

impl TemplateSpecs {
    fn odd(&self) -> impl Iterator<Item = String> {
        let rendered = self.templates.iter().filter(|template| !template.has_no_records());
        let records = rendered.flat_map(|spec| {
            let records = [&spec.answer, &spec.authority, &spec.additional].into_iter().flatten();
            records.map(move |record| (spec, record))
        });
        records.filter_map(|(spec, record)| {
            let error = spec.read_record(record, &record.constant()?).err()?;
            let Record { at, .. } = record;
            Some(format!("{at}: plugin/{PLUGIN}: {error}; queries that this template matches get SERVFAIL"))
        })
    }
}

impl Record {
    /// The rendered text, if it is the same for every query.
    fn constant(&self) -> Option<String> {
        let (mut text, query) = (String::new(), AnyQuery::default());
        self.template.render(&query, &mut text).ok().filter(|()| !query.read.get()).map(|()| text)
    }
}

/// Empty data that record whether a template reads them.
#[derive(Default)]
struct AnyQuery {
    read: Cell<bool>,
}

impl Fields for AnyQuery {
    fn field(&self, _: &str) -> Option<Value<'_>> {
        self.read.set(true);
        None
    }

    fn call(&self, _: &str, _: &str) -> Option<Value<'_>> {
        self.read.set(true);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_corefile::tests::{parsed, with};

    #[test]
    fn constant_texts_that_are_no_records() {
        let odd = |lines: &str| parsed::<TemplateSpecs>(lines).unwrap().odd().collect::<Vec<_>>();
        for (record, expected) in [
            ("a. 60 IN A 192.0.2.1", None),
            ("a. 1h IN SPF v=spf1", None),
            ("a..b. 60 IN A 192.0.2.1", Some("\"a..b.\" is not a name: a label is empty")),
            (
                "{{ `a.` }} 60 IN {{/* no type */}} 192.0.2.1",
                Some("\"192.0.2.1\" is no class, no TTL and no record type"),
            ),
            // These texts depend on the query.
            ("{{ .Name }} 60 IN A nonsense", None),
            ("a. 60 IN A {{ if .Name }}nonsense{{ end }}", None),
            ("a. 60 IN TXT {{ .Meta `forward/upstream` }}", None),
        ] {
            let problems =
                odd(&with("template IN A", &format!("additional \"a. A 192.0.2.1\" \"{record}\"")));
            assert_eq!(problems.len(), usize::from(expected.is_some()), "{record}: {problems:?}");
            if let Some(expected) = expected {
                let problem = &problems[0];
                assert!(
                    problem.starts_with("Corefile:3:29: plugin/template: \"") && problem.contains(expected),
                    "{problem}"
                );
            }
        }
        assert!(odd("template IN A {\nrcode SERVFAIL\nanswer a\n}").is_empty(), "no record is rendered");
    }
}
