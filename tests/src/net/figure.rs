//! One measured figure with its unit, spread and bar.

/// A row of the table.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    pub unit: &'static str,
    pub value: f64,
    /// Smallest and largest, or median and largest; what it is stands in `spread_is`.
    pub spread: (f64, f64),
    pub spread_is: String,
    /// In words; empty where there is none.
    pub bar: String,
    /// Whether the bar is met; None where there is none.
    pub passes: Option<bool>,
}

impl Figure {
    /// A figure without a bar.
    pub fn new(name: impl Into<String>, unit: &'static str, value: f64) -> Figure {
        let (spread, spread_is, bar) = ((value, value), String::new(), String::new());
        Figure { name: name.into(), unit, value, spread, spread_is, bar, passes: None }
    }

    /// The median of several, their range beside it.
    pub fn median(name: impl Into<String>, unit: &'static str, values: &[f64]) -> Figure {
        let sorted = sorted(values);
        let value = quantile(&sorted, 0.5);
        Figure::new(name, unit, value).spread((sorted[0], sorted[sorted.len() - 1]), "range")
    }

    pub fn spread(self, spread: (f64, f64), spread_is: impl Into<String>) -> Figure {
        Figure { spread, spread_is: spread_is.into(), ..self }
    }

    /// Judges it.
    pub fn bar(self, bar: impl Into<String>, passes: bool) -> Figure {
        Figure { bar: bar.into(), passes: Some(passes), ..self }
    }

    /// One line.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "name": self.name, "unit": self.unit, "value": self.value, "spread": [self.spread.0, self.spread.1],
            "spread_is": self.spread_is, "bar": self.bar, "passes": self.passes,
        })
    }
}

pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

/// Of sorted values, at least one.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() as f64 * share) as usize).min(sorted.len() - 1)]
}
