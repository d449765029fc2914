//! Properties that hold for every text.

use crate::common::{print, read};
use proptest::prelude::*;

/// Generates words with and without a meaning in a Corefile, in any order.
fn scraps() -> impl Strategy<Value = String> {
    let scrap = prop_oneof![
        "[a-z]{1,3}",
        "[a-z]{1,3}\\.[a-z]{1,2}(:[0-9]{1,5})?",
        "\"[a-z\\\\\" {}#\n]{0,5}\"",
        "10\\.0\\.0\\.0/[0-9]{1,2}",
        prop::sample::select(vec![
            "{",
            "}",
            "{\n",
            "\n}\n",
            "\n",
            " ",
            ",",
            ",\n",
            "#",
            "# x\n",
            "\"",
            "\\",
            "(s)",
            "(t)",
            "import",
            "import s\n",
            "import t\n",
            "{$A}",
            "{%PORT%}",
            "{$UNSET}",
            "{$BLANKS}",
            "{$",
            ".",
            ".:53",
            "dns://.",
            "::/1",
            "\r\n",
            "\t",
            "\0",
            "é",
        ])
        .prop_map(str::to_owned),
    ];
    prop::collection::vec((scrap, prop::sample::select(vec!["", " ", " ", "\n"])), 0..40)
        .prop_map(|scraps| scraps.into_iter().map(|(scrap, blank)| scrap + blank).collect())
}

/// Generates valid blocks in unusual layout.
fn blocks() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        "[a-z0-9./:_-]{1,6}",
        r#""[a-z {}#,.]{0,6}""#,
        r#""([a-z]|\\\\|\\"|\\[a-z]){0,6}""#,
        r#"[a-z][a-z"\\{}]{0,3}[a-z]"#,
    ];
    let line = ("[a-z_]{1,8}", prop::collection::vec(word, 0..4))
        .prop_map(|(name, args)| format!("x{name} {}", args.join("\t")));
    let lines = prop::collection::vec(line, 0..4).prop_map(|lines| lines.join(" # note\n"));
    let body = (lines.clone(), lines).prop_map(|(outer, inner)| format!("{outer}\nxp q {{\n{inner}\n}}"));
    let block = ("[a-z]{1,5}(:[0-9]{1,4})?", body).prop_map(|(key, body)| format!("{key} {{ {body}\n}}\n"));
    prop::collection::vec(block, 0..4).prop_map(|blocks| blocks.concat())
}

/// Words that only variables can produce: one that begins with a quote, one with a backslash before
/// a quote or at the end, and a key that has lost one of two commas.
#[test]
fn quoted_words_round_trip() {
    for text in [
        ". {\nx {$UNSET}\"\"\"\n}",
        ". {\nx {$UNSET}\"\\\"\\\n}",
        ". {\nx {$BLANKS}\\\\\n}",
        ". {\nx {$BLANKS}\\\n}",
        ". {\nx {$BLANKS}\\\"\\\"\n}",
        ". {\nx \"\\{$UNSET}\\\"\\\\\\\"\"\n}",
        "{$UNSET}\"\"\"",
        ",, a,, \"b,,\" c",
    ] {
        let corefile = read(text).expect(text);
        let printed = print(&corefile);
        let again = read(&printed).unwrap_or_else(|error| panic!("{text} is printed as {printed}: {error}"));
        assert!(corefile.tokens().eq(again.tokens()), "{text} is printed as {printed}");
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(bytes).map_err(|error| error.to_string());
    }

    #[test]
    fn no_scraps_panic(text in scraps()) {
        let _ = read(text).map_err(|error| error.to_string());
    }

    #[test]
    fn errors_point_into_the_text(text in scraps()) {
        if let Err(error) = read(&text) {
            let lines: Vec<_> = text.split('\n').collect();
            let line = lines[error.at.line as usize - 1];
            prop_assert!(error.at.column as usize <= line.chars().count() + 1, "{}", error);
        }
    }

    #[test]
    fn corefile_round_trip(text in prop_oneof![scraps(), blocks()]) {
        let Ok(corefile) = read(&text) else { return Ok(()) };
        let printed = print(&corefile);
        let again = read(&printed);
        prop_assert!(again.is_ok(), "{}\n{}", printed, again.unwrap_err());
        let again = again.expect("just seen");
        prop_assert!(corefile.tokens().eq(again.tokens()), "{}", printed);
    }

    #[test]
    fn right_blocks_are_read(text in blocks()) {
        let corefile = read(&text);
        prop_assert!(corefile.is_ok(), "{}", corefile.unwrap_err());
    }

    #[test]
    fn comments_change_no_token(text in blocks()) {
        let spread = text.replace('\n', "\r\n\n  # more }\n");
        let (plain, spread) = (read(&text).expect("right blocks"), read(&spread).expect("right blocks"));
        prop_assert!(plain.tokens().eq(spread.tokens()));
    }
}
