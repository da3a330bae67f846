//! Conversion of a parsed template to one that the engine runs with Jinja2's meaning.
//!
//! minijinja (3.0.5) parses Jinja2, but has rules of its own for undefined and none values, for
//! comparisons of kinds, for arguments of macros, and for the visibility of names. So each
//! operation of Python becomes a filter of this project (`operations`), with a name that no
//! template can spell. Blocks that have a scope in Jinja2 get one.

mod chains;
mod expressions;
mod macros;
pub(super) mod operations;

use minijinja::machinery::Span;
use minijinja::machinery::ast::{self, Expr, Spanned, Stmt};
use minijinja::{Error, ErrorKind, Value};

use operations as op;

/// Converts a template for the engine. Fails, with the line, if the template uses a feature that
/// cannot be rendered as in Jinja2.
pub(super) fn lower(template: &Stmt<'static>) -> Result<Stmt<'static>, Error> {
    let Stmt::Template(template) = template else {
        return Err(Error::new(ErrorKind::SyntaxError, "this is no template"));
    };
    let children = Lowering::default().body(&template.children)?;
    Ok(Stmt::Template(Spanned::new(
        ast::Template { children },
        template.span(),
    )))
}

type Expression = Expr<'static>;
type Statement = Stmt<'static>;

/// State at the current place in the template.
#[derive(Debug, Default)]
struct Lowering {
    /// True inside a condition. Jinja2 looks up the filters and tests of a condition only when it
    /// runs.
    in_condition: bool,
    /// Nesting depth of the current expression.
    depth: usize,
    /// The use of the names `caller`, `kwargs` and `varargs` in each macro that is open.
    specials: Vec<macros::Specials>,
}

/// Makes an error with its place.
fn refused(span: Span, message: impl std::fmt::Display) -> Error {
    let line = span.start_line;
    Error::new(ErrorKind::SyntaxError, format!("{message} (line {line})"))
}

fn constant(value: impl Into<Value>, span: Span) -> Expression {
    let value = value.into();
    Expr::Const(Spanned::new(ast::Const { value }, span))
}

fn variable(id: &'static str, span: Span) -> Expression {
    Expr::Var(Spanned::new(ast::Var { id }, span))
}

/// Makes the filter that computes an operation.
fn apply(name: &'static str, first: Expression, rest: Vec<Expression>, span: Span) -> Expression {
    let args = rest.into_iter().map(ast::CallArg::Pos).collect();
    let expr = Some(first);
    Expr::Filter(Spanned::new(ast::Filter { name, expr, args }, span))
}

fn emit(expr: Expression, span: Span) -> Statement {
    Stmt::EmitExpr(Spanned::new(ast::EmitExpr { expr }, span))
}

fn set(target: Expression, expr: Expression, span: Span) -> Statement {
    Stmt::Set(Spanned::new(ast::Set { target, expr }, span))
}

/// Makes a block with a scope of its own.
fn scope(body: Vec<Statement>, span: Span) -> Statement {
    let assignments = Vec::new();
    Stmt::WithBlock(Spanned::new(ast::WithBlock { assignments, body }, span))
}

impl Lowering {
    fn body(&mut self, body: &[Statement]) -> Result<Vec<Statement>, Error> {
        let mut lowered = Vec::with_capacity(body.len());
        for statement in body {
            self.statement(&mut lowered, statement)?;
        }
        Ok(lowered)
    }

    /// Converts a body that is not a condition's, even inside a condition.
    fn inner(&mut self, body: &[Statement]) -> Result<Vec<Statement>, Error> {
        let in_condition = std::mem::replace(&mut self.in_condition, false);
        let lowered = self.body(body);
        self.in_condition = in_condition;
        lowered
    }

    fn statement(&mut self, out: &mut Vec<Statement>, statement: &Statement) -> Result<(), Error> {
        match statement {
            Stmt::Template(template) => out.extend(self.body(&template.children)?),
            Stmt::EmitExpr(print) => out.push(emit(self.expr(&print.expr)?, print.span())),
            Stmt::EmitRaw(text) => {
                let raw = Value::from_safe_string(text.raw.to_owned());
                out.push(emit(constant(raw, text.span()), text.span()));
            }
            Stmt::ForLoop(each) => out.push(self.for_loop(each)?),
            Stmt::IfCond(cond) => out.push(self.condition(cond)?),
            Stmt::WithBlock(with) => out.push(self.with(with)?),
            Stmt::Set(assigned) => self.set(out, assigned)?,
            Stmt::SetBlock(block) => self.set_block(out, block)?,
            Stmt::FilterBlock(block) => {
                let filter = self.expr(&block.filter)?;
                let filter = apply(op::TEXT, filter, Vec::new(), block.span());
                let body = vec![scope(self.inner(&block.body)?, block.span())];
                let block = Spanned::new(ast::FilterBlock { filter, body }, block.span());
                out.push(Stmt::FilterBlock(block));
            }
            Stmt::Block(block) => {
                let (name, required) = (block.name, block.required);
                let body = self.inner(&block.body)?;
                let lowered = ast::Block {
                    name,
                    required,
                    body,
                };
                out.push(Stmt::Block(Spanned::new(lowered, block.span())));
            }
            Stmt::Macro(declared) => self.macro_statement(out, declared)?,
            Stmt::CallBlock(call) => self.call_block(out, call)?,
            Stmt::Continue(at) => out.push(Stmt::Continue(Spanned::new(ast::Continue, at.span()))),
            Stmt::Break(at) => out.push(Stmt::Break(Spanned::new(ast::Break, at.span()))),
            Stmt::AutoEscape(at) => {
                return Err(refused(at.span(), "the tag 'autoescape' is not supported"));
            }
            Stmt::Do(at) => return Err(refused(at.span(), "there is no tag 'do'")),
            Stmt::Import(at) => out.push(other_template(at.span())),
            Stmt::FromImport(at) => out.push(other_template(at.span())),
            Stmt::Extends(at) => out.push(other_template(at.span())),
            Stmt::Include(at) => out.push(other_template(at.span())),
        }
        Ok(())
    }

    fn for_loop(&mut self, each: &Spanned<ast::ForLoop<'static>>) -> Result<Statement, Error> {
        let span = each.span();
        if each.recursive && each.filter_expr.is_some() {
            return Err(refused(
                span,
                "a recursive loop cannot have a condition here",
            ));
        }
        let mut shape = Vec::new();
        if let Expr::List(_) = each.target {
            shape.push(constant(true, span));
        }
        // Jinja2 visits the iterable outside of the loop's frame, so a condition around the loop
        // counts for it.
        let iterable = self.expr(&each.iter)?;
        let in_condition = std::mem::replace(&mut self.in_condition, false);
        let lowered = ast::ForLoop {
            target: plain_target(&each.target)?,
            iter: apply(op::ITERATE, iterable, shape, span),
            filter_expr: each
                .filter_expr
                .as_ref()
                .map(|expr| self.expr(expr))
                .transpose()?,
            recursive: each.recursive,
            body: self.body(&each.body)?,
            else_body: match self.body(&each.else_body)? {
                body if body.is_empty() => body,
                body => vec![scope(body, span)],
            },
        };
        self.in_condition = in_condition;
        Ok(Stmt::ForLoop(Spanned::new(lowered, span)))
    }

    fn condition(&mut self, cond: &Spanned<ast::IfCond<'static>>) -> Result<Statement, Error> {
        let in_condition = std::mem::replace(&mut self.in_condition, true);
        let lowered = ast::IfCond {
            expr: self.expr(&cond.expr)?,
            true_body: self.body(&cond.true_body)?,
            false_body: self.body(&cond.false_body)?,
        };
        self.in_condition = in_condition;
        Ok(Stmt::IfCond(Spanned::new(lowered, cond.span())))
    }

    /// Computes all values outside the block before a name is set.
    fn with(&mut self, with: &Spanned<ast::WithBlock<'static>>) -> Result<Statement, Error> {
        let span = with.span();
        let (mut values, mut names) = (Vec::new(), Vec::new());
        for (at, (target, expr)) in with.assignments.iter().enumerate() {
            let kept = temporary(at, span)?;
            values.push((variable(kept, span), self.unpacked(target, expr, span)?));
            names.push((plain_target(target)?, variable(kept, span)));
        }
        values.extend(names);
        let body = self.inner(&with.body)?;
        let assignments = values;
        Ok(Stmt::WithBlock(Spanned::new(
            ast::WithBlock { assignments, body },
            span,
        )))
    }

    fn set(
        &mut self,
        out: &mut Vec<Statement>,
        assigned: &Spanned<ast::Set<'static>>,
    ) -> Result<(), Error> {
        let span = assigned.span();
        let expr = self.unpacked(&assigned.target, &assigned.expr, span)?;
        let mut attributes = Vec::new();
        let target = self.target(&assigned.target, &mut attributes)?;
        out.push(set(target, expr, span));
        out.extend(attributes);
        Ok(())
    }

    fn set_block(
        &mut self,
        out: &mut Vec<Statement>,
        block: &Spanned<ast::SetBlock<'static>>,
    ) -> Result<(), Error> {
        let span = block.span();
        let filter = block
            .filter
            .as_ref()
            .map(|filter| self.expr(filter))
            .transpose()?;
        let body = vec![scope(self.inner(&block.body)?, span)];
        let mut attributes = Vec::new();
        let target = self.target(&block.target, &mut attributes)?;
        let lowered = ast::SetBlock {
            target,
            filter,
            body,
        };
        out.push(Stmt::SetBlock(Spanned::new(lowered, span)));
        out.extend(attributes);
        Ok(())
    }

    /// Converts the value for a target. If several names take the value apart, it becomes a list,
    /// since the engine does not take texts apart.
    fn unpacked(
        &mut self,
        target: &Expression,
        expr: &Expression,
        span: Span,
    ) -> Result<Expression, Error> {
        let expr = self.expr(expr)?;
        Ok(match target {
            Expr::List(_) => apply(op::UNPACKED, expr, Vec::new(), span),
            _ => expr,
        })
    }

    /// Converts a target. Attributes of namespaces are set by statements of their own after it;
    /// these are added to `attributes`.
    fn target(
        &mut self,
        target: &Expression,
        attributes: &mut Vec<Statement>,
    ) -> Result<Expression, Error> {
        let span = target.span();
        match target {
            Expr::List(list) => {
                let items = list.items.iter().map(|item| self.target(item, attributes));
                let items = items.collect::<Result<_, _>>()?;
                Ok(Expr::List(Spanned::new(ast::List { items }, span)))
            }
            Expr::GetAttr(attribute) => {
                let Expr::Var(namespace) = &attribute.expr else {
                    return Err(refused(span, "only an attribute of a name can be set"));
                };
                let kept = temporary(attributes.len(), span)?;
                let args = vec![constant(attribute.name, span), variable(kept, span)];
                let namespace = variable(namespace.id, span);
                attributes.push(emit(apply(op::SET_ATTRIBUTE, namespace, args, span), span));
                Ok(variable(kept, span))
            }
            other => plain_target(other),
        }
    }
}

/// Copies a target that consists of names.
fn plain_target(target: &Expression) -> Result<Expression, Error> {
    match target {
        Expr::Var(name) => Ok(variable(name.id, name.span())),
        Expr::List(list) => {
            let items = list
                .items
                .iter()
                .map(plain_target)
                .collect::<Result<_, _>>()?;
            Ok(Expr::List(Spanned::new(ast::List { items }, list.span())))
        }
        other => Err(refused(other.span(), "this cannot be assigned to")),
    }
}

/// Returns a name that no template can use.
fn temporary(at: usize, span: Span) -> Result<&'static str, Error> {
    const NAMES: [&str; 12] = [
        "%0", "%1", "%2", "%3", "%4", "%5", "%6", "%7", "%8", "%9", "%10", "%11",
    ];
    let name = NAMES.get(at).copied();
    name.ok_or_else(|| refused(span, "too many names are assigned at once"))
}

/// Makes a statement that fails when it runs. In transformers, Jinja2 has no loader and fails at
/// that time too.
fn other_template(span: Span) -> Statement {
    let message = constant("chat templates cannot load other templates", span);
    emit(apply(op::REFUSE, message, Vec::new(), span), span)
}
