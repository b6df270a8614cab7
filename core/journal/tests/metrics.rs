//! Metrics from text and bytes.

use std::collections::BTreeMap;

use diecast_core_journal::metrics::{
    MetricError, Statistic, combined, combined_of_nodes, figures, from_json, from_regex, from_sample_bytes,
    percentile_rank, to_sample_bytes,
};
use diecast_core_journal::{Combine, Shown};

#[test]
fn json_takes_the_last_json_line() {
    let text = "starting\n{\"rate\": 1}\nnoise 12\n{\"rate\": 89.5, \"a\": {\"b\": [7, {\"c\": 3}]}}\nbye\n42\n";
    assert_eq!(from_json(text, "$.rate"), Ok(Some(89.5)));
    assert_eq!(from_json(text, "$.a.b[0]"), Ok(Some(7.0)));
    assert_eq!(from_json(text, "$.a.b[1].c"), Ok(Some(3.0)));
    assert_eq!(from_json("[1,[2,3]]", "$[1][0]"), Ok(Some(2.0)));
}

#[test]
fn json_errors_say_what_was_there() {
    let text = "{\"rate\": \"fast\"}";
    assert_eq!(from_json("no json\n", "$.rate"), Err(MetricError::NoJson));
    assert_eq!(
        from_json(text, "$.rats").unwrap_err().to_string(),
        "the last JSON line has nothing at $.rats: {\"rate\": \"fast\"}"
    );
    assert_eq!(from_json(text, "$.rate").unwrap_err().to_string(), "$.rate is no number: \"fast\"");
    for path in ["rate", "$rate", "$.", "$.a..b", "$[x]", "$[1", "$[-1]"] {
        assert!(matches!(from_json(text, path), Err(MetricError::Path { .. })), "{path}");
    }
}

#[test]
fn a_program_that_answered_nothing_has_no_figure_and_no_fault() {
    assert_eq!(from_json("{\"rate\": 0, \"p50\": null}", "$.p50"), Ok(None));
    assert_eq!(from_json("{\"rate\": 0, \"p50\": null}", "$.rate"), Ok(Some(0.0)));
    assert_eq!(from_sample_bytes(&[]), Ok(vec![]));
    assert_eq!(figures(&[Statistic::Mean, Statistic::P50], &[]), []);
    let shown = [Shown { statistic: Statistic::P50, value: 2.0 }, Shown { statistic: Statistic::Max, value: 9.0 }];
    assert_eq!(figures(&[Statistic::P50, Statistic::Max], &[1, 2, 9]), shown);
    let nodes = |b| BTreeMap::from([("a".to_owned(), Some(3.0)), ("b".to_owned(), b)]);
    assert_eq!(combined_of_nodes(Combine::Max, &nodes(Some(1.0))), Ok(Some(3.0)));
    assert_eq!(combined_of_nodes(Combine::Max, &nodes(None)), Ok(None), "the maximum of the others is another figure");
}

#[test]
fn regex_takes_the_last_match_of_its_one_group() {
    let text = "errors=1\nerrors=2\nmistakes=3\n";
    assert_eq!(from_regex(text, r"errors=(\d+)"), Ok(2.0));
    assert_eq!(from_regex("took 1.5e3 ns", r"took (\S+) ns"), Ok(1500.0));
    assert!(matches!(from_regex(text, "errors"), Err(MetricError::Captures { captures: 0, .. })));
    assert!(matches!(from_regex(text, "(e)(r)"), Err(MetricError::Captures { captures: 2, .. })));
    assert!(matches!(from_regex(text, "("), Err(MetricError::Pattern { .. })));
    assert!(matches!(from_regex(text, "x=(.)"), Err(MetricError::NoMatch { .. })));
    assert!(matches!(from_regex(text, "(errors)"), Err(MetricError::NotANumber { .. })));
    assert!(matches!(from_regex("x=inf", "x=(.*)"), Err(MetricError::NotANumber { .. })));
}

#[test]
fn samples_are_little_endian_and_whole() {
    assert_eq!(from_sample_bytes(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]), Ok(vec![1, 256]));
    assert_eq!(from_sample_bytes(&[0; 9]), Err(MetricError::SampleLength { length: 9 }));
    let samples = vec![0, 1, u64::MAX, 0x0123_4567_89ab_cdef];
    assert_eq!(from_sample_bytes(&to_sample_bytes(&samples)), Ok(samples));
}

#[test]
fn combining() {
    let values = [3.0, 1.0, 8.0];
    let all = [Combine::Sum, Combine::Mean, Combine::Max, Combine::Min].map(|how| combined(how, &values).unwrap());
    assert_eq!(all, [12.0, 4.0, 8.0, 1.0]);
    assert!(combined(Combine::Sum, &[]).is_err());
}

#[test]
fn percentiles_are_nearest_rank() {
    assert_eq!(percentile_rank(200, 990_000), Some(197));
    assert_eq!(percentile_rank(5, 500_000), Some(2));
    assert_eq!(percentile_rank(4, 500_000), Some(1));
    assert_eq!(percentile_rank(1, 1), Some(0));
    assert_eq!(percentile_rank(7, 1_000_000), Some(6));
    assert_eq!(percentile_rank(0, 500_000), None);
    assert_eq!(percentile_rank(usize::MAX, 1_000_000), Some(usize::MAX - 1));
    let samples = [50, 10, 40, 20, 30];
    assert_eq!(Statistic::P50.of(&samples), Ok(30.0));
    assert_eq!(Statistic::P99.of(&samples), Ok(50.0));
    assert_eq!(Statistic::Mean.of(&samples), Ok(30.0));
    assert!(Statistic::Mean.of(&[]).is_err() && Statistic::P50.of(&[]).is_err());
}

#[test]
fn pooling_differs_from_averaging() {
    // Two nodes: 99 fast and 1 slow, and 100 slow. The averaged p50 would be 505, the pooled one is slow.
    let (fast, slow) = ([10_u64; 99], [1000_u64; 101]);
    let pooled = [&fast[..], &slow[..]].concat();
    assert_eq!(Statistic::P50.of(&pooled), Ok(1000.0));
}

#[test]
fn figures_have_one_text_each() {
    for (text, statistic) in [
        ("mean", Statistic::Mean),
        ("min", Statistic::Min),
        ("max", Statistic::Max),
        ("p50", Statistic::P50),
        ("p99.9", Statistic::Percentile(999_000)),
        ("p99.99", Statistic::Percentile(999_900)),
        ("p100", Statistic::Percentile(1_000_000)),
        ("p0.0001", Statistic::Percentile(1)),
    ] {
        assert_eq!(text.parse(), Ok(statistic));
        assert_eq!(statistic.to_string(), text);
    }
    for text in ["p0", "p101", "p", "p1.", "p.5", "p-1", "median", "p99.99999", "p+1"] {
        assert!(text.parse::<Statistic>().is_err(), "{text}");
    }
}
