//! What a request contains besides the prompt: the options of the command line, which `/set` changes in a chat.

use serde_json::{Map, Value};

use crate::{
    args::{Run, Think},
    connect::Target,
    error::{Failure, Outcome},
    ui,
};

#[derive(Debug)]
pub(super) struct Settings {
    /// The system message, instead of the model's own.
    pub(super) system: Option<String>,
    /// Options of the API, such as `temperature`.
    pub(super) options: Map<String, Value>,
    pub(super) format: Option<Format>,
    pub(super) think: Option<Think>,
    pub(super) hide_thinking: bool,
    pub(super) keep_alive: Option<String>,
    /// Whether counts and speeds are printed after a response.
    pub(super) verbose: bool,
}

/// The `format` field of requests, and its spelling.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Format {
    /// `json`, or the path of a schema.
    name: String,
    value: Value,
}

impl Settings {
    pub(super) fn from_args(args: &Run) -> Outcome<Settings> {
        let mut options = Map::new();
        let numbers = [
            ("temperature", args.temperature.map(Value::from)),
            ("seed", args.seed.map(Value::from)),
            ("num_predict", args.num_predict.map(Value::from)),
        ];
        options.extend(numbers.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        Ok(Settings {
            system: args.system.clone(),
            options,
            format: args.format.as_deref().map(Format::read).transpose()?,
            think: args.think,
            hide_thinking: args.hide_thinking,
            keep_alive: args.keep_alive.clone(),
            verbose: args.verbose,
        })
    }

    /// A request to `target`, without a prompt.
    pub(super) fn request(&self, target: &Target) -> Map<String, Value> {
        let mut request = Map::new();
        request.insert("model".into(), target.model().into());
        request.insert("stream".into(), true.into());
        if !self.options.is_empty() {
            request.insert("options".into(), self.options.clone().into());
        }
        if let Some(format) = &self.format {
            request.insert("format".into(), format.value.clone());
        }
        if let Some(think) = self.think {
            request.insert("think".into(), think.value());
        }
        if let Some(keep_alive) = &self.keep_alive {
            request.insert("keep_alive".into(), keep_alive.as_str().into());
        }
        request
    }

    /// Prints the settings that differ from those of the model.
    pub(super) fn print(&self) -> Outcome {
        let line = |name: &str, value: &str| ui::print_line(format!("  {name:<14}{value}"));
        line("system", self.system.as_deref().unwrap_or("the model's own"))?;
        line("format", self.format.as_ref().map_or("none", |format| &format.name))?;
        line("think", self.think.map_or("the model's default", Think::name))?;
        line("verbose", if self.verbose { "on" } else { "off" })?;
        self.print_options()
    }

    pub(super) fn print_options(&self) -> Outcome {
        self.options.iter().try_for_each(|(name, value)| ui::print_line(format!("  {name:<14}{value}")))
    }
}

impl Format {
    /// Reads a value of `--format` or `/set format`.
    pub(super) fn read(name: &str) -> Outcome<Format> {
        const HINT: &str = "a format is `json` or a file with a JSON schema";
        let value = match name {
            "json" => name.into(),
            path => {
                let text = std::fs::read(path).map_err(|error| {
                    Failure::with_source(format!("cannot read the format {path}"), &error).hint(HINT)
                })?;
                serde_json::from_slice(&text).map_err(|error| {
                    Failure::new(format!("the format {path} is not valid JSON: {error}")).hint(HINT)
                })?
            }
        };
        Ok(Format { name: name.to_owned(), value })
    }
}

impl Think {
    pub(super) const NAMES: [&str; 5] = ["true", "false", "low", "medium", "high"];

    pub(super) fn parse(name: &str) -> Option<Think> {
        [Think::True, Think::False, Think::Low, Think::Medium, Think::High]
            .into_iter()
            .find(|think| think.name() == name)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Think::True => "true",
            Think::False => "false",
            Think::Low => "low",
            Think::Medium => "medium",
            Think::High => "high",
        }
    }

    /// The field of a request: a boolean or a level.
    fn value(self) -> Value {
        match self {
            Think::True => true.into(),
            Think::False => false.into(),
            level => level.name().into(),
        }
    }
}
