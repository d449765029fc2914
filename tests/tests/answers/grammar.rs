//! The grammar of random server blocks: lines with probabilities, in the sections `[random]` of the
//! plugins' files.
//!
//! ```text
//! 1/4 hosts @DIR@/hosts%(|| k.@ZONE@)     once in 4 blocks; one of the choices between bars
//!     1/3 ttl %(1|5|60)                   a line of its sub-block, with its own probability
//!     ? host.@ZONE@                       names to query if the line is drawn
//! 1/3*0-2                                 once in 3 blocks, 0 to 2 of the alternatives
//! | rewrite type MX TXT
//! | rewrite stop
//!     1/1 name suffix .k.@ZONE@ .t.@ZONE@
//! ```
//! `%(0-99)` is a number of that range. `@ZONE@` is the zone of the block.

use crate::random_numbers::Dice;

/// A line with its probability.
#[derive(Debug)]
pub(crate) struct Item {
    /// The probability: `.0` in `.1`.
    chance: (u64, u64),
    /// Minimum and maximum repetitions, if drawn.
    times: (u64, u64),
    /// One choice, or the alternatives.
    choices: Vec<Choice>,
}

/// A line, its sub-block, and matching names.
#[derive(Debug, Default)]
struct Choice {
    text: String,
    inside: Vec<Item>,
    names: Vec<String>,
}

/// Parses the lines of a section.
///
/// # Panics
/// When a line does not follow the grammar.
pub(crate) fn parse(lines: &[String]) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    let mut lines = lines.iter().map(String::as_str).peekable();
    while let Some(line) = lines.next() {
        let mut inside = Vec::new();
        while let Some(deeper) = lines.next_if(|next| next.starts_with(INDENT)) {
            inside.push(deeper[INDENT.len()..].to_owned());
        }
        let names = inside.iter().filter_map(|line| line.strip_prefix("? "));
        let names = names.flat_map(|names| names.split(' ')).map(str::to_owned).collect();
        inside.retain(|line| !line.starts_with("? "));
        if let Some(text) = line.strip_prefix("| ") {
            let item = items.last_mut().expect("an alternative follows its chance");
            item.choices.push(Choice { text: text.to_owned(), inside: parse(&inside), names });
            continue;
        }
        let (count, text) = line.split_once(' ').unwrap_or((line, ""));
        let default = if count.contains('/') { (count, "1-1") } else { ("1/1", count) };
        let (chance, times) = count.split_once('*').unwrap_or(default);
        let mut choices = Vec::new();
        if !text.is_empty() {
            choices.push(Choice { text: text.to_owned(), inside: parse(&inside), names });
        }
        items.push(Item { chance: numbers(chance, '/'), times: numbers(times, '-'), choices });
    }
    items
}

fn numbers(text: &str, between: char) -> (u64, u64) {
    let both = text.split_once(between).and_then(|(one, other)| one.parse().ok().zip(other.parse().ok()));
    both.unwrap_or_else(|| panic!("{text:?} is not two numbers with {between:?} between"))
}

/// Draws directives, each with its sub-block, and their matching names.
pub(crate) fn draw(items: &[Item], dice: &mut Dice, zone: &str) -> (Vec<String>, Vec<String>) {
    let (mut lines, mut names) = (Vec::new(), Vec::new());
    for item in items {
        if dice.below(item.chance.1) >= item.chance.0 {
            continue;
        }
        for _ in 0..item.times.0 + dice.below(item.times.1 - item.times.0 + 1) {
            let choice = dice.of(&item.choices);
            let text = fill(&choice.text, dice, zone);
            let (inside, _) = draw(&choice.inside, dice, zone);
            lines.push(match inside.is_empty() {
                true => text,
                false => format!("{text} {{\n        {}\n    }}", inside.join("\n        ")),
            });
            names.extend(choice.names.iter().map(|name| fill(name, dice, zone)));
        }
    }
    (lines, names)
}

/// Replaces the choices in a text by drawn ones.
fn fill(text: &str, dice: &mut Dice, zone: &str) -> String {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, choice)) = rest.split_once("%(") {
        let (choices, after) = choice.split_once(')').expect("a choice ends");
        filled.push_str(before);
        let choices: Vec<&str> = choices.split('|').collect();
        let range = match choices[..] {
            [one] => one
                .split_once('-')
                .and_then(|(least, most)| least.parse::<u64>().ok().zip(most.parse::<u64>().ok())),
            _ => None,
        };
        match range {
            Some((least, most)) => filled.push_str(&(least + dice.below(most - least + 1)).to_string()),
            None => filled.push_str(choices[dice.below(choices.len() as u64) as usize]),
        }
        rest = after;
    }
    (filled + rest).replace("@ZONE@", zone)
}

/// The indentation of a sub-block.
const INDENT: &str = "    ";

#[test]
fn grammar_draws_directives_with_sub_blocks() {
    let section = "1/1 hosts %(a|a)\n    1/1 ttl %(7-7)\n    ? x.@ZONE@\n2-2\n| rewrite stop\n    1/1 name a @ZONE@\n0/1 any";
    let lines: Vec<String> = section.lines().map(str::to_owned).collect();
    let (lines, names) = draw(&parse(&lines), &mut Dice::new(1), "z.test");
    let rewrite = "rewrite stop {\n        name a z.test\n    }";
    assert_eq!(lines, ["hosts a {\n        ttl 7\n    }", rewrite, rewrite]);
    assert_eq!(names, ["x.z.test"]);
}
