//! Parses tokens to a tree, by the grammar of Go's text/template. Unknown functions and variables are errors
//! here.

use std::collections::BTreeMap;

use super::error::SyntaxError;
use super::functions::Function;
use super::lex::{Position, Token, tokens};
use super::limits::{MAX_DEPTH, MAX_VARIABLES};

/// A run of nodes.
pub(super) type List = Vec<Node>;

#[derive(Clone, Debug)]
pub(super) enum Node {
    Text(String),
    Action(Pipeline),
    If(Branch),
    With(Branch),
    Range(Branch),
    /// `{{ template "name" pipeline }}`
    Call {
        name: String,
        pipeline: Option<Pipeline>,
        line: usize,
    },
    Break,
    Continue,
}

#[derive(Clone, Debug)]
pub(super) struct Branch {
    pub(super) pipeline: Pipeline,
    pub(super) list: List,
    pub(super) otherwise: Option<List>,
}

#[derive(Clone, Debug)]
pub(super) struct Pipeline {
    pub(super) line: usize,
    /// The variables that receive the value, with their `$`.
    pub(super) variables: Vec<String>,
    /// Whether the variables exist already.
    pub(super) assigns: bool,
    /// Each command receives the value of the previous one as its last argument.
    pub(super) commands: Vec<Vec<Operand>>,
}

#[derive(Clone, Debug)]
pub(super) enum Operand {
    Dot,
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    /// `.A.B`
    Field(Vec<String>),
    /// `$a.B`: the variable with its `$`, then fields.
    Variable(Vec<String>),
    Function(Function),
    Pipeline(Box<Pipeline>),
    /// `(...).A.B`
    Chain(Box<Operand>, Vec<String>),
}

/// Parses a template to its tree and the trees that it defines by name.
pub(super) fn parse(source: &str) -> Result<(List, BTreeMap<String, List>), SyntaxError> {
    let mut parser = Parser {
        tokens: tokens(source)?,
        at: 0,
        variables: vec!["$".to_owned()],
        ranges: 0,
        depth: 0,
        defined: BTreeMap::new(),
    };
    match parser.list(true)? {
        (root, None) => Ok((root, parser.defined)),
        (_, Some(End::End)) => Err(parser.error("unexpected {{end}}")),
        (_, Some(End::Else)) => Err(parser.error("unexpected {{else}}")),
    }
}

struct Parser {
    tokens: Vec<(Token, Position)>,
    at: usize,
    variables: Vec<String>,
    ranges: usize,
    depth: usize,
    defined: BTreeMap<String, List>,
}

/// The word that ended a list.
enum End {
    End,
    /// The delimiter is consumed, unless `if` or `with` follows.
    Else,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    fn next(&mut self) -> Option<Token> {
        let token = self.peek().cloned();
        self.at += 1;
        token
    }

    fn skip_space(&mut self) {
        while self.peek() == Some(&Token::Space) {
            self.at += 1;
        }
    }

    fn place(&self) -> Position {
        let at = self.at.min(self.tokens.len().saturating_sub(1));
        self.tokens.get(at).map_or(Position::START, |(_, place)| *place)
    }

    fn line(&self) -> usize {
        self.place().line
    }

    fn error(&self, what: impl Into<String>) -> SyntaxError {
        self.place().error(what)
    }

    fn unexpected(&self, context: &str) -> SyntaxError {
        match self.peek() {
            Some(Token::Close) => self.error(format!("unexpected \"}}}}\" in {context}")),
            Some(Token::Word(word)) => self.error(format!("unexpected <{word}> in {context}")),
            Some(token) => self.error(format!("unexpected {token:?} in {context}")),
            None => self.error("unexpected EOF"),
        }
    }

    fn expect_close(&mut self, context: &str) -> Result<(), SyntaxError> {
        self.skip_space();
        match self.peek() {
            Some(Token::Close) => {
                self.at += 1;
                Ok(())
            }
            _ => Err(self.unexpected(context)),
        }
    }

    fn with_deeper_nesting<T>(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<T, SyntaxError>,
    ) -> Result<T, SyntaxError> {
        if self.depth >= MAX_DEPTH {
            return Err(self.error("nested too deeply"));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Parses nodes up to `end` or `else`. Only the top level ends at the end of the source, and only there
    /// names can be defined.
    fn list(&mut self, top: bool) -> Result<(List, Option<End>), SyntaxError> {
        let mut nodes = List::new();
        loop {
            match self.next() {
                None if top => return Ok((nodes, None)),
                None => return Err(self.error("unexpected EOF")),
                Some(Token::Text(text)) => nodes.push(Node::Text(text)),
                Some(_) => {
                    // Every token here that is not text is an opening delimiter.
                    self.skip_space();
                    let Some(Token::Word(word)) = self.peek().cloned() else {
                        nodes.push(Node::Action(self.pipeline("command", &Token::Close)?));
                        continue;
                    };
                    self.at += 1;
                    match word.as_str() {
                        "end" => {
                            self.expect_close("end")?;
                            return Ok((nodes, Some(End::End)));
                        }
                        "else" => {
                            self.skip_space();
                            if !self.at_word("if") && !self.at_word("with") {
                                self.expect_close("else")?;
                            }
                            return Ok((nodes, Some(End::Else)));
                        }
                        "define" if top => self.define()?,
                        "block" => {
                            let line = self.line();
                            let name = self.name("block clause")?;
                            let pipeline = self.pipeline("block clause", &Token::Close)?;
                            self.body(name.clone())?;
                            nodes.push(Node::Call { name, pipeline: Some(pipeline), line });
                        }
                        "template" => {
                            let line = self.line();
                            let name = self.name("template clause")?;
                            self.skip_space();
                            let pipeline = match self.peek() {
                                Some(Token::Close) => {
                                    self.at += 1;
                                    None
                                }
                                _ => Some(self.pipeline("template clause", &Token::Close)?),
                            };
                            nodes.push(Node::Call { name, pipeline, line });
                        }
                        "if" => nodes.push(Node::If(self.with_deeper_nesting(|parser| parser.branch("if"))?)),
                        "with" => {
                            nodes.push(Node::With(self.with_deeper_nesting(|parser| parser.branch("with"))?))
                        }
                        "range" => nodes
                            .push(Node::Range(self.with_deeper_nesting(|parser| parser.branch("range"))?)),
                        "break" | "continue" => {
                            if self.ranges == 0 {
                                return Err(self.error(format!("{{{{{word}}}}} outside {{{{range}}}}")));
                            }
                            self.expect_close(&word)?;
                            nodes.push(if word == "break" { Node::Break } else { Node::Continue });
                        }
                        _ => {
                            self.at -= 1;
                            nodes.push(Node::Action(self.pipeline("command", &Token::Close)?));
                        }
                    }
                }
            }
        }
    }

    fn at_word(&self, word: &str) -> bool {
        matches!(self.peek(), Some(Token::Word(found)) if found == word)
    }

    fn name(&mut self, context: &str) -> Result<String, SyntaxError> {
        self.skip_space();
        match self.peek().cloned() {
            Some(Token::Str(name)) => {
                self.at += 1;
                Ok(name)
            }
            _ => Err(self.unexpected(context)),
        }
    }

    fn define(&mut self) -> Result<(), SyntaxError> {
        let name = self.name("define clause")?;
        self.expect_close("define clause")?;
        self.body(name)
    }

    /// Parses a template with a name, which sees only its own variables.
    fn body(&mut self, name: String) -> Result<(), SyntaxError> {
        let variables = std::mem::replace(&mut self.variables, vec!["$".to_owned()]);
        let ranges = std::mem::take(&mut self.ranges);
        let (list, end) = self.with_deeper_nesting(|parser| parser.list(false))?;
        if !matches!(end, Some(End::End)) {
            return Err(self.error("unexpected {{else}} in define clause"));
        }
        (self.variables, self.ranges) = (variables, ranges);
        self.defined.insert(name, list);
        Ok(())
    }

    fn branch(&mut self, word: &str) -> Result<Branch, SyntaxError> {
        let mark = self.variables.len();
        let pipeline = self.pipeline(word, &Token::Close)?;
        self.ranges += usize::from(word == "range");
        let (list, end) = self.list(false)?;
        self.ranges -= usize::from(word == "range");
        let otherwise = match end {
            Some(End::Else) if matches!(word, "if" | "with") && self.at_word(word) => {
                // Its `end` also ends this branch.
                self.at += 1;
                let branch = self.with_deeper_nesting(|parser| parser.branch(word))?;
                Some(vec![if word == "if" { Node::If(branch) } else { Node::With(branch) }])
            }
            Some(End::Else) if self.at_word("if") || self.at_word("with") => {
                return Err(self.unexpected("else"));
            }
            Some(End::Else) => match self.list(false)? {
                (list, Some(End::End)) => Some(list),
                _ => return Err(self.error("expected end; found {{else}}")),
            },
            _ => None,
        };
        self.variables.truncate(mark);
        Ok(Branch { pipeline, list, otherwise })
    }

    fn pipeline(&mut self, context: &str, end: &Token) -> Result<Pipeline, SyntaxError> {
        self.skip_space();
        let mut pipeline =
            Pipeline { line: self.line(), variables: Vec::new(), assigns: false, commands: Vec::new() };
        self.declarations(&mut pipeline, context)?;
        loop {
            self.skip_space();
            match self.peek() {
                Some(token) if token == end => {
                    if pipeline.commands.is_empty() {
                        return Err(self.error(format!("missing value for {context}")));
                    }
                    self.at += 1;
                    return Ok(pipeline);
                }
                Some(Token::Pipe | Token::Comma | Token::Assign | Token::Declare | Token::ParenClose)
                | Some(Token::Close | Token::Open | Token::Text(_))
                | None => return Err(self.unexpected(context)),
                Some(_) => {
                    let command = self.command()?;
                    let executable = !matches!(
                        command[0],
                        Operand::Bool(_)
                            | Operand::Dot
                            | Operand::Nil
                            | Operand::Int(_)
                            | Operand::Float(_)
                            | Operand::Str(_)
                    );
                    if !pipeline.commands.is_empty() && !executable {
                        let stage = pipeline.commands.len() + 1;
                        return Err(self.error(format!("non executable command in pipeline stage {stage}")));
                    }
                    pipeline.commands.push(command);
                }
            }
        }
    }

    /// Parses `$x :=`, `$x =` and, for ranges, `$i, $x :=`.
    fn declarations(&mut self, pipeline: &mut Pipeline, context: &str) -> Result<(), SyntaxError> {
        let start = self.at;
        let mut names = Vec::new();
        while let Some(Token::Variable(name)) = self.peek().cloned() {
            self.at += 1;
            names.push(name);
            self.skip_space();
            match self.peek() {
                Some(sign @ (Token::Assign | Token::Declare)) => {
                    pipeline.assigns = *sign == Token::Assign;
                    self.at += 1;
                    if pipeline.assigns {
                        for name in &names {
                            self.check_variable(name)?;
                        }
                    } else {
                        if self.variables.len() + names.len() > MAX_VARIABLES {
                            let limit = format!("more than {MAX_VARIABLES} variables in scope");
                            return Err(self.error(limit));
                        }
                        self.variables.extend(names.iter().cloned());
                    }
                    pipeline.variables = names;
                    return Ok(());
                }
                Some(Token::Comma) if context == "range" && names.len() < 2 => {
                    self.at += 1;
                    self.skip_space();
                }
                Some(Token::Comma) => {
                    return Err(self.error(format!("too many declarations in {context}")));
                }
                _ => break,
            }
        }
        if names.len() > 1 {
            return Err(self.error("range can only initialize variables"));
        }
        // Not a declaration: the variable is an operand.
        self.at = start;
        Ok(())
    }

    fn command(&mut self) -> Result<Vec<Operand>, SyntaxError> {
        let mut operands = Vec::new();
        loop {
            self.skip_space();
            if let Some(operand) = self.operand()? {
                operands.push(operand);
            }
            match self.peek() {
                Some(Token::Space) => {}
                Some(Token::Close | Token::ParenClose) => break,
                Some(Token::Pipe) => {
                    self.at += 1;
                    break;
                }
                _ => return Err(self.unexpected("operand")),
            }
        }
        if operands.is_empty() { Err(self.error("empty command")) } else { Ok(operands) }
    }

    fn operand(&mut self) -> Result<Option<Operand>, SyntaxError> {
        let Some(term) = self.term()? else { return Ok(None) };
        let mut fields = Vec::new();
        while let Some(Token::Field(name)) = self.peek().cloned() {
            self.at += 1;
            fields.push(name);
        }
        if fields.is_empty() {
            return Ok(Some(term));
        }
        Ok(Some(match term {
            Operand::Field(mut names) => {
                names.extend(fields);
                Operand::Field(names)
            }
            Operand::Variable(mut names) => {
                names.extend(fields);
                Operand::Variable(names)
            }
            Operand::Function(_) | Operand::Pipeline(_) => Operand::Chain(Box::new(term), fields),
            _ => return Err(self.error("unexpected . after a term")),
        }))
    }

    fn term(&mut self) -> Result<Option<Operand>, SyntaxError> {
        let term = match self.peek().cloned() {
            Some(Token::Word(word)) => match word.as_str() {
                "true" => Operand::Bool(true),
                "false" => Operand::Bool(false),
                "nil" => Operand::Nil,
                name => Operand::Function(
                    Function::by_name(name)
                        .ok_or_else(|| self.error(format!("function {name:?} not defined")))?,
                ),
            },
            Some(Token::Dot) => Operand::Dot,
            Some(Token::Field(name)) => Operand::Field(vec![name]),
            Some(Token::Variable(name)) => {
                self.check_variable(&name)?;
                Operand::Variable(vec![name])
            }
            Some(Token::Int(number)) => Operand::Int(number),
            Some(Token::Float(number)) => Operand::Float(number),
            Some(Token::Str(text)) => Operand::Str(text),
            Some(Token::ParenOpen) => {
                self.at += 1;
                let inner = self.with_deeper_nesting(|parser| {
                    parser.pipeline("parenthesized pipeline", &Token::ParenClose)
                })?;
                return Ok(Some(Operand::Pipeline(Box::new(inner))));
            }
            _ => return Ok(None),
        };
        self.at += 1;
        Ok(Some(term))
    }

    fn check_variable(&self, name: &str) -> Result<(), SyntaxError> {
        match self.variables.iter().any(|known| known == name) {
            true => Ok(()),
            false => Err(self.error(format!("undefined variable {name:?}"))),
        }
    }
}
