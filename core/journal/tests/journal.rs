//! Writing and reading journals: round trip, torn lines, strictness, versions.

use diecast_core_journal::{
    Conservation, JOURNAL_VERSION, JournalError, Record, examples, hash_text, read, to_line, write_record,
};

fn text() -> String {
    examples().iter().map(to_line).collect()
}

#[test]
fn what_is_written_is_read_back() {
    let mut bytes = Vec::new();
    for record in examples() {
        write_record(&mut bytes, &record).unwrap();
    }
    let journal = read(bytes.as_slice()).unwrap();
    assert!(!journal.torn);
    let mut records = vec![Record::Header(journal.header.clone())];
    records.extend(journal.records.iter().cloned());
    assert_eq!(records, examples());
    assert!(journal.end().is_some());
}

#[test]
fn the_format_is_pinned() {
    // A change here is a change of the format: raise JOURNAL_VERSION with it.
    let lines = text();
    let expected = include_str!("golden/version-16.jsonl");
    for (line, expected) in lines.lines().zip(expected.lines()) {
        assert_eq!(line, expected);
    }
    assert_eq!(lines.lines().count(), expected.lines().count());
}

#[test]
fn every_cut_leaves_the_whole_lines_before_it() {
    let text = text();
    let first = text.find('\n').unwrap();
    for cut in 0..text.len() {
        let result = read(&text.as_bytes()[..cut]);
        // A header that lacks only its newline is whole.
        if cut < first {
            assert!(matches!(result, Err(JournalError::Empty)), "cut at {cut}: {result:?}");
            continue;
        }
        let journal = result.unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        let newlines = text[..cut].matches('\n').count();
        let complete = text[..cut].ends_with('\n') || text.as_bytes()[cut] == b'\n';
        let whole = newlines + usize::from(complete && !text[..cut].ends_with('\n'));
        assert_eq!(journal.records.len() + 1, whole, "cut at {cut}");
        assert_eq!(journal.torn, !complete, "cut at {cut}");
    }
}

#[test]
fn a_broken_line_in_the_middle_is_an_error_with_its_number() {
    let mut lines: Vec<String> = text().lines().map(str::to_owned).collect();
    lines[3].truncate(20);
    let error = read((lines.join("\n") + "\n").as_bytes()).unwrap_err();
    assert!(matches!(error, JournalError::Line { line: 4, .. }), "{error}");
}

#[test]
fn unknown_records_and_keys_are_errors() {
    for (from, to) in [
        ("\"record\":\"phase\"", "\"record\":\"phrase\""),
        ("\"phase\":\"measure\"", "\"phase\":\"measure\",\"colour\":1"),
        ("\"started\":{", "\"started\":{\"pid\":3,"),
        ("\"lab\":", "\"laboratory\":1,\"lab\":"),
        ("\"escaped_ns\":100000,", ""),
    ] {
        let changed = text().replacen(from, to, 1);
        assert_ne!(changed, text(), "{from} is not in the text");
        assert!(read(changed.as_bytes()).is_err(), "{to} was accepted");
    }
}

#[test]
fn another_version_is_named_before_its_keys_are_judged() {
    let next = JOURNAL_VERSION + 1;
    let other = format!(
        "{{\"record\":\"header\",\"journal_version\":{next},\"diecast_version\":\"9.1\",\"brand_new\":true}}\n"
    );
    let error = read(other.as_bytes()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "the journal has version {next}, this diecast reads version {JOURNAL_VERSION} (it was written by diecast 9.1)"
        )
    );
}

#[test]
fn the_header_comes_first_and_once() {
    let all = text();
    let (header, rest) = all.split_once('\n').unwrap();
    assert!(matches!(read(rest.as_bytes()), Err(JournalError::NoHeader(_))));
    let twice = format!("{header}\n{header}\n");
    assert!(matches!(read(twice.as_bytes()), Err(JournalError::SecondHeader { line: 2 })));
    assert!(matches!(read("".as_bytes()), Err(JournalError::Empty)));
    assert!(matches!(read("not json\n".as_bytes()), Err(JournalError::NoHeader(_))));
}

#[test]
fn conservation_error_is_relative_to_what_was_due() {
    let window = |charged_ns, used_ns, meter_cost_ns| {
        Conservation { charged_ns, used_ns, meter_cost_ns, ..Conservation::default() }.error()
    };
    assert_eq!(window(19_900_000, 20_300_000, 300_000), 0.005);
    assert_eq!(window(20_200_000, 20_300_000, 300_000), 0.01);
    assert_eq!(window(0, 0, 0), 0.0);
    assert_eq!(window(5, 3, 3), 1.0);
}

#[test]
fn the_hash_is_fnv_1a() {
    // Published test vectors of FNV-1a 64.
    assert_eq!(hash_text(""), "cbf29ce484222325");
    assert_eq!(hash_text("a"), "af63dc4c8601ec8c");
    assert_eq!(hash_text("foobar"), "85944171f73967e8");
}
