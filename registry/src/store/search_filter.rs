//! The conditions of a search as SQL.

use super::lineage::without_tag;
use super::repositories::names_below;
use super::search::Amount;
use super::search_facets::FacetColumn;
use super::words::origin_word;
use super::{Engine, ListFilter, Store, bigint};

/// The conditions of a search; `None` is no condition.
#[derive(Clone, Debug, Default)]
pub(crate) struct SearchFilter {
    /// What was typed, in lower case, split at spaces.
    pub(crate) typed: Vec<String>,
    /// Each is the beginning of a word of the repository. Empty although something was typed: nothing fits.
    pub(crate) words: Vec<String>,
    /// Few results are read from the list of the words, or of the origin, rather than from that of another fact: see
    /// [`Store::search_plan`].
    pub(crate) prefers_words: bool,
    /// Each is a part of the repository's name.
    pub(crate) in_name: Vec<String>,
    /// The first part of the name.
    pub(crate) author: Option<String>,
    pub(crate) content: SearchContent,
    /// Only the kind of model that represents its repository; otherwise the first kind that fits.
    pub(crate) represents: bool,
    /// Each is a tag of the model that represents the repository, in lower case. Few results are read from those of
    /// the first one: see [`Store::search_plan`].
    pub(crate) tags: Vec<String>,
    pub(crate) format: Option<String>,
    pub(crate) quantization: Option<String>,
    pub(crate) architecture: Option<String>,
    pub(crate) license: Option<String>,
    pub(crate) task: Option<String>,
    pub(crate) min_parameters: Option<u64>,
    pub(crate) max_parameters: Option<u64>,
    pub(crate) max_size_bytes: Option<u64>,
    pub(crate) min_context: Option<u64>,
    /// The name of a model that it was made from.
    pub(crate) base: Option<String>,
}

/// What a search looks through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SearchContent {
    /// Models, and manifests that were not read yet.
    #[default]
    Models,
    /// Models that were read.
    ReadModels,
    Everything,
}

impl SearchFilter {
    /// Whether a condition depends on the kind of model.
    pub(super) fn has_facts(&self) -> bool {
        let texts =
            [&self.format, &self.quantization, &self.architecture, &self.license, &self.task, &self.base];
        let numbers = [self.min_parameters, self.max_parameters, self.max_size_bytes, self.min_context];
        texts.into_iter().any(Option::is_some) || numbers.iter().any(Option::is_some)
    }

    /// Whether repositories can be read from lists of words: the origins of a repository's models are words, too.
    pub(super) fn has_word_lists(&self) -> bool {
        !self.words.is_empty() || (self.typed.is_empty() && self.base.is_some())
    }

    /// The words and the origin in the syntax of SQLite's FTS5.
    pub(super) fn fts_words(&self) -> String {
        // The words are ASCII letters and digits, so they are no syntax of either engine.
        let words = self.words.iter().map(|word| format!("\"{word}\"*"));
        let origin = self.base.iter().map(|base| format!("\"{}\"", origin_word(base)));
        words.chain(origin).collect::<Vec<String>>().join(" AND ")
    }

    /// The same in the syntax of Postgres.
    pub(super) fn ts_words(&self) -> String {
        let words = self.words.iter().map(|word| format!("'{word}':*"));
        let origin = self.base.iter().map(|base| format!("'{}'", origin_word(base)));
        words.chain(origin).collect::<Vec<String>>().join(" & ")
    }

    pub(super) fn has(&self, column: FacetColumn) -> bool {
        match column {
            FacetColumn::Format => self.format.is_some(),
            FacetColumn::Quantization => self.quantization.is_some(),
            FacetColumn::Architecture => self.architecture.is_some(),
            FacetColumn::License => self.license.is_some(),
            FacetColumn::Task => self.task.is_some(),
            FacetColumn::Base => self.base.is_some(),
            FacetColumn::Parameters => self.min_parameters.is_some() || self.max_parameters.is_some(),
            FacetColumn::Memory => self.max_size_bytes.is_some(),
            FacetColumn::Context => self.min_context.is_some(),
        }
    }

    /// The filter without its own choice of a fact.
    pub(super) fn without(&self, column: FacetColumn) -> SearchFilter {
        let mut filter = self.clone();
        match column {
            FacetColumn::Format => filter.format = None,
            FacetColumn::Quantization => filter.quantization = None,
            FacetColumn::Architecture => filter.architecture = None,
            FacetColumn::License => filter.license = None,
            FacetColumn::Task => filter.task = None,
            FacetColumn::Base => filter.base = None,
            FacetColumn::Parameters => (filter.min_parameters, filter.max_parameters) = (None, None),
            FacetColumn::Memory => filter.max_size_bytes = None,
            FacetColumn::Context => filter.min_context = None,
        }
        filter
    }
}

/// A text with its parameters.
pub(super) struct Text {
    pub(super) parameters: Vec<Parameter>,
    is_sqlite: bool,
}

#[derive(Clone)]
pub(super) enum Parameter {
    Text(String),
    Number(i64),
}

impl Text {
    /// A text whose first four parameters are those of the visibility.
    pub(super) fn new(store: &Store, visible: &ListFilter) -> Text {
        let (all, visibility, subjects, targets) = visible.parameters();
        let parameters = vec![
            Parameter::Number(all),
            Parameter::Number(visibility),
            Parameter::Text(subjects),
            Parameter::Text(targets),
        ];
        Text { parameters, is_sqlite: matches!(store.read(), Engine::Sqlite(_)) }
    }

    pub(super) fn text(&mut self, value: impl Into<String>) -> String {
        self.parameters.push(Parameter::Text(value.into()));
        format!("cast(${} as text)", self.parameters.len())
    }

    /// A text for a comparison with an expression that has an index: SQLite uses none if the types differ.
    fn untyped(&mut self, value: impl Into<String>) -> String {
        self.parameters.push(Parameter::Text(value.into()));
        format!("${}", self.parameters.len())
    }

    pub(super) fn number(&mut self, value: i64) -> String {
        self.parameters.push(Parameter::Number(value));
        format!("cast(${} as bigint)", self.parameters.len())
    }

    /// Whether the text of a column contains a parameter.
    fn contains(&self, column: &str, parameter: &str) -> String {
        match self.is_sqlite {
            true => format!("instr({column}, {parameter}) > 0"),
            false => format!("strpos({column}, {parameter}) > 0"),
        }
    }

    /// Keeps SQLite, which knows no statistics, from using an index of this expression instead of that of the
    /// order.
    fn unindexed(&self, expression: &str, amount: Amount<'_>) -> String {
        match self.is_sqlite && amount == Amount::Many {
            true => format!("+{expression}"),
            false => expression.to_owned(),
        }
    }

    /// The conditions on the facts of the row `s`.
    pub(super) fn facts(&mut self, filter: &SearchFilter, amount: Amount<'_>) -> String {
        // Rows of a repository with the words, or that was found before, are found by its number, and not by a fact.
        let is_by_number = matches!(amount, Amount::Found(_)) || self.begins_with_words(filter, amount);
        let amount = if is_by_number { Amount::Many } else { amount };
        self.facts_of("s", filter, amount)
    }

    fn facts_of(&mut self, row: &str, filter: &SearchFilter, amount: Amount<'_>) -> String {
        let mut all = Vec::new();
        match filter.content {
            SearchContent::Models => all.push(format!("({row}.format is null or {row}.format <> '')")),
            SearchContent::ReadModels => all.push(format!("{row}.format <> ''")),
            SearchContent::Everything => {}
        }
        for (column, value) in [
            ("format", &filter.format),
            ("quantization", &filter.quantization),
            ("architecture", &filter.architecture),
            ("license", &filter.license),
            ("task", &filter.task),
        ] {
            if let Some(value) = value {
                let value = self.untyped(value.to_ascii_lowercase());
                let name = self.unindexed(&format!("lower({row}.{column})"), amount);
                all.push(format!("{name} = {value}"));
            }
        }
        for (column, operator, limit) in [
            ("parameters", ">=", filter.min_parameters),
            ("parameters", "<=", filter.max_parameters),
            ("size_bytes", "<=", filter.max_size_bytes),
            ("context_length", ">=", filter.min_context),
        ] {
            if let Some(limit) = limit {
                let column = self.unindexed(&format!("{row}.{column}"), amount);
                // What is unknown fits no limit.
                all.push(format!("{column} {operator} {} and {column} >= 0", self.number(bigint(limit))));
            }
        }
        if let Some(base) = &filter.base {
            // The words of a repository have the origins of all its models, without tags.
            let bases = format!("{row}.bases");
            let whole = self.text(format!("\n{base}\n"));
            let mut named = self.contains(&bases, &whole);
            if without_tag(base) == base {
                let tagged = self.text(format!("\n{base}:"));
                named = format!("({named} or {})", self.contains(&bases, &tagged));
            }
            all.push(named);
        }
        if all.is_empty() { "1 = 1".to_owned() } else { all.join(" and ") }
    }

    /// The table of the rows `s`, and the condition on their words and tags.
    pub(super) fn source(&mut self, filter: &SearchFilter, amount: Amount<'_>) -> (String, String) {
        if let Amount::Found(ids) = amount {
            let ids = self.text(serde_json::Value::from(ids).to_string());
            let found = match self.is_sqlite {
                true => format!("s.id in (select value from json_each({ids}))"),
                false => format!("s.id = any(array(select cast(value as bigint) from json_each({ids})))"),
            };
            return ("search s".to_owned(), found);
        }
        if let Some((first, rest)) = filter.tags.split_first() {
            let words = self.words(filter, amount);
            // Many rows are read in their order, and each is looked up.
            if amount == Amount::Many {
                let mut all = vec![words];
                all.extend(filter.tags.iter().map(|tag| self.has_tag(tag, "s.repository")));
                return ("search s".to_owned(), all.join(" and "));
            }
            // Few rows are those of the first tag.
            let mut all = vec![words, format!("g.tag = {}", self.text(first))];
            if !self.is_sqlite {
                all.extend(rest.iter().map(|tag| self.has_tag(tag, "g.repository")));
                return (
                    "search_tags g join search s on s.repository = g.repository".to_owned(),
                    all.join(" and "),
                );
            }
            // SQLite reads tables in the order of cross joins: the other tags are looked up before the row, which is longer.
            // It would look up an `exists` after the row.
            let mut source = "search_tags g".to_owned();
            for (at, tag) in rest.iter().enumerate() {
                source.push_str(&format!(" cross join search_tags g{at} on g{at}.repository = g.repository"));
                all.push(format!("g{at}.tag = {}", self.text(tag)));
            }
            source.push_str(" cross join search s on s.repository = g.repository");
            return (source, all.join(" and "));
        }
        if self.begins_with_words(filter, amount) {
            return (self.rows_with_words(filter, None), "1 = 1".to_owned());
        }
        ("search s".to_owned(), self.words(filter, amount))
    }

    /// Whether rows are read from the list of the repositories with the words, and no more of it than the limit of the
    /// statement needs. Otherwise, Postgres decides this by its statistics.
    fn begins_with_words(&self, filter: &SearchFilter, amount: Amount<'_>) -> bool {
        amount == Amount::Few
            && filter.tags.is_empty()
            && filter.has_word_lists()
            && (filter.prefers_words || (self.is_sqlite && !filter.has_facts()))
    }

    /// The rows `s` of the repositories with the words, in the order of that list, or of the first `limit` of them.
    pub(super) fn rows_with_words(&mut self, filter: &SearchFilter, limit: Option<i64>) -> String {
        let limit = limit.map_or_else(String::new, |limit| format!("limit {limit}"));
        if self.is_sqlite {
            let words = self.text(filter.fts_words());
            return format!(
                "(select rowid as id from search_words where search_words match {words} {limit}) few
                 cross join search s on s.id = few.id"
            );
        }
        // `offset 0` keeps the order in which they are read.
        let words = self.text(filter.ts_words());
        format!(
            "(select id from search_words where words @@ cast({words} as tsquery) {limit} offset 0) few
             cross join lateral (select * from search r where r.id = few.id offset 0) s"
        )
    }

    /// Whether a repository has a tag.
    fn has_tag(&mut self, tag: &str, repository: &str) -> String {
        let tag = self.text(tag);
        format!("exists (select 1 from search_tags h where h.tag = {tag} and h.repository = {repository})")
    }

    /// The condition on the words of the row `s`.
    fn words(&mut self, filter: &SearchFilter, amount: Amount<'_>) -> String {
        if !filter.typed.is_empty() && filter.words.is_empty() {
            return "1 = 0".to_owned();
        }
        // The facts of rows that are read in their order tell the origin.
        if filter.words.is_empty() && (filter.base.is_none() || amount == Amount::Many) {
            return "1 = 1".to_owned();
        }
        if self.is_sqlite {
            let id = self.unindexed("s.id", amount);
            let words = self.text(filter.fts_words());
            return format!("{id} in (select rowid from search_words where search_words match {words})");
        }
        let words = format!("cast({} as tsquery)", self.text(filter.ts_words()));
        match amount {
            Amount::Few | Amount::Found(_) => {
                format!("s.id in (select id from search_words where words @@ {words})")
            }
            // Many rows are read in their order, and each is looked up. This form can be neither a join nor a list of all
            // repositories with the words, which Postgres believes to be short.
            Amount::Many => format!("(select w.words @@ {words} from search_words w where w.id = s.id)"),
        }
    }

    /// The conditions on the name of the row `s`. `is_order`: rows are read in the order of names.
    pub(super) fn name(&mut self, filter: &SearchFilter, amount: Amount<'_>, is_order: bool) -> String {
        let mut all = vec!["1 = 1".to_owned()];
        if matches!(amount, Amount::Found(_)) {
            return all.concat();
        }
        if let Some(author) = &filter.author {
            let (first, end) = names_below(author);
            let name = match is_order {
                true => "s.repository".to_owned(),
                false => self.unindexed("s.repository", amount),
            };
            all.push(format!("{name} >= {} and {name} < {}", self.text(first), self.text(end)));
        }
        for part in &filter.in_name {
            let part = self.text(part);
            all.push(self.contains("s.repository", &part));
        }
        all.join(" and ")
    }

    /// Where and which rows `s` fit, visible or not: the repository has the words, and of the rows of its repository it is
    /// the first one with the facts.
    pub(super) fn fitting(
        &mut self,
        filter: &SearchFilter,
        amount: Amount<'_>,
        is_name_order: bool,
    ) -> (String, String) {
        let facts = self.facts(filter, amount);
        let (source, words) = self.source(filter, amount);
        let name = self.name(filter, amount, is_name_order);
        let first = match filter.has_facts() && !filter.represents {
            true => format!(
                "(s.position = 0 or not exists (select 1 from search x
                     where x.id = s.id and x.position < s.position and {}))",
                // By the number of the repository: an index of a fact has rows of all repositories.
                self.facts_of("x", filter, Amount::Many)
            ),
            false => "s.position = 0".to_owned(),
        };
        (source, format!("{facts} and {words} and {name} and {first}"))
    }

    /// How close the name of `s` is to what was typed: the higher, the closer.
    pub(super) fn relevance(&mut self, names: &TypedNames) -> String {
        let TypedNames { whole, first, .. } = names;
        let in_name = self.contains("s.repository", first);
        let begins = format!("substr(s.repository, 1, length({first})) = {first}");
        let begins_part = self.contains("s.repository", &format!("'/' || {first}"));
        format!(
            "case when s.repository in ({whole}, {first}) then 4
                  when {begins} then 3 when {begins_part} then 2 when {in_name} then 1 else 0 end"
        )
    }
}

/// Parameters: what was typed as a name, its first word, and the end of the names that begin with the first
/// word.
pub(super) struct TypedNames {
    pub(super) whole: String,
    pub(super) first: String,
    pub(super) end: String,
}
