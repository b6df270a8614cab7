//! What wrong catalogs are told: each `bad/*.yaml` with the text beside it. DIECAST_BLESS=1 rewrites the texts;
//! read the difference before it is kept.
#![expect(clippy::disallowed_methods, reason = "a test reads and writes the golden files beside it")]

use std::path::{Path, PathBuf};

use diecast_core_experiment::{Diagnostic, parse};

const WEB_TIER: &str = include_str!("good/web-tier.yaml");

fn bad_catalogs() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "yaml"));
    files.sort();
    files
}

fn render(faults: &[Diagnostic]) -> String {
    faults.iter().map(|f| format!("{f}\n")).collect()
}

#[test]
fn every_bad_catalog_gets_its_message() {
    let files = bad_catalogs();
    assert!(files.len() >= 25, "{}", files.len());
    let bless = std::env::var_os("DIECAST_BLESS").is_some();
    let mut stale = Vec::new();
    for file in files {
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        let faults = parse(&name, &std::fs::read_to_string(&file).unwrap(), &[])
            .expect_err(&format!("{name} was read without a fault"));
        let text = render(&faults);
        let golden = file.with_extension("txt");
        if bless {
            std::fs::write(&golden, &text).unwrap();
        }
        if std::fs::read_to_string(&golden).unwrap_or_default() != text {
            stale.push(format!("{name} now says:\n{text}"));
        }
    }
    assert!(stale.is_empty(), "{}\nDIECAST_BLESS=1 rewrites the texts", stale.join("\n"));
}

/// House style of messages: a place in the text, lower case, no full stop.
#[test]
fn messages_have_a_place_and_the_house_style() {
    for file in bad_catalogs() {
        let text = std::fs::read_to_string(&file).unwrap();
        for fault in parse("x.yaml", &text, &[]).unwrap_err() {
            let line = text.lines().nth(fault.line as usize - 1);
            let length = line.map(|l| l.chars().count()).unwrap_or(0);
            let end_of_text = fault.line as usize == text.lines().count() + 1;
            assert!(line.is_some() || end_of_text, "{fault} is outside {}", file.display());
            assert!(fault.column as usize <= length + 1, "{fault} is outside {}", file.display());
            for part in std::iter::once(&fault.message).chain(&fault.hint) {
                assert!(!part.ends_with('.') && !part.is_empty(), "{fault}");
                assert!(!part.starts_with(|c: char| c.is_uppercase()) || part.starts_with("YAML"), "{fault}");
            }
        }
    }
}

fn overridden(name: &str, value: &str) -> String {
    render(&parse("web-tier.yaml", WEB_TIER, &[(name.to_owned(), value.to_owned())]).unwrap_err())
}

#[test]
fn overrides_are_checked_against_the_catalog() {
    assert_eq!(
        overridden("rat", "5/s"),
        "-p rat=5/s:1:4: the catalog has no parameter 'rat'\n  hint: did you mean 'rate'?\n"
    );
    assert_eq!(
        overridden("rate", "210"),
        "-p rate=210:1:9: '210' for 'rate', expected a rate like the catalog's 90/s\n  \
         hint: accepted units: /s, /min or /h\n"
    );
    assert_eq!(
        overridden("seed", "x"),
        "-p seed=x:1:9: 'x' for 'seed', expected a whole number like the catalog's 7\n"
    );
}

/// Nothing that is cut off, doubled or nested makes the reader panic or hang.
#[test]
fn damaged_catalogs_are_refused_or_read_but_never_crash() {
    for end in (0..WEB_TIER.len()).step_by(3) {
        if WEB_TIER.is_char_boundary(end) {
            let _ = parse("cut.yaml", &WEB_TIER[..end], &[]);
        }
    }
    for (at, _) in WEB_TIER.char_indices().step_by(7) {
        for inserted in ["{", "]", ":", "\"", "&a ", "*a ", "\u{0}", "\t", "${", "9999999999999999999999"] {
            let damaged = format!("{}{inserted}{}", &WEB_TIER[..at], &WEB_TIER[at..]);
            let _ = parse("damaged.yaml", &damaged, &[]);
        }
    }
    let deep = format!("diecast: {}", "[".repeat(5_000));
    assert!(parse("deep.yaml", &deep, &[]).is_err());
    let many = format!("diecast: 1\nname: x\n{}", "a: 1\n".repeat(2_000));
    assert!(parse("many.yaml", &many, &[]).is_err());
}
