//! Names of `metadata` labels, such as `kubernetes/namespace`.

use std::collections::BTreeSet;

use corefile::Directive;

/// Whether the text is a label: a plugin, a slash, a name.
pub fn is_label(text: &str) -> bool {
    text.split_once('/').is_some_and(|(plugin, name)| !plugin.is_empty() && !name.is_empty())
}

/// Returns the rest of each label that begins with `beginning`, such as `kubernetes/client-label/`,
/// in the words of directives; sorted, without duplicates.
///
/// Directives write labels in full, but in different forms: `{/label}`, `{label}`, `"label"`.
pub fn named_behind(beginning: &str, directives: &[Directive]) -> Vec<Box<str>> {
    let mut named = BTreeSet::new();
    let mut left: Vec<&Directive> = directives.iter().collect();
    while let Some(directive) = left.pop() {
        for word in std::iter::once(&directive.name).chain(&directive.args) {
            let parts = word.text.split(beginning).skip(1);
            named.extend(parts.map(|part| part.split(ends_label).next().unwrap_or_default()));
        }
        left.extend(directive.body.iter().flatten());
    }
    named.into_iter().filter(|name| !name.is_empty()).map(Into::into).collect()
}

/// Whether the character can be part of neither a label nor a Kubernetes key.
fn ends_label(c: char) -> bool {
    !(c.is_ascii_alphanumeric() || "-_./".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn label_ends_in_directives() {
        let text = r#". {
            log . "{/kubernetes/client-label/app} {/kubernetes/client-label/}{/kubernetes/kind}"
            rewrite name regex a {kubernetes/client-label/app.kubernetes.io/name}.b metadata
            template IN A {
                answer "{{ .Meta \"kubernetes/client-label/tier\" }} {{ .Meta \"kubernetes/client-label/app\" }}"
                expr metadata('kubernetes/client-label/a_b') == 'x'
            }
        }"#;
        let corefile = corefile::read_text("Corefile", text.as_bytes(), Path::new("/"), &|_| None).unwrap();
        let directives = &corefile.blocks[0].directives;
        let named = |beginning: &str| named_behind(beginning, directives).join(" ");
        assert_eq!(named("kubernetes/client-label/"), "a_b app app.kubernetes.io/name tier");
        assert_eq!(named("kubernetes/client-pod-name"), "");
        assert_eq!(named("kubernetes/k"), "ind");
    }

    #[test]
    fn labels() {
        for (text, is) in [
            ("plugin/LABEL", true),
            ("p/L", true),
            ("PLUGIN/LABEL/SUB-LABEL", true),
            ("LABEL", false),
            ("plugin.LABEL", false),
            ("/NO-PLUGIN", false),
            ("NO-NAME/", false),
            ("/", false),
            ("//", false),
        ] {
            assert_eq!(is_label(text), is, "{text}");
        }
    }
}
