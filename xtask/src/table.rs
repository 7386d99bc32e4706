//! Plain tables: for the terminal and for Markdown.

/// A table with a header row.
pub(crate) struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(header: &[&str]) -> Self {
        Self { header: header.iter().map(ToString::to_string).collect(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Markdown, columns aligned so that it also reads well as plain text. The first column is
    /// text, the others are figures and stand to the right.
    pub(crate) fn markdown(&self) -> String {
        let columns = self.header.len();
        let width: Vec<usize> = (0..columns)
            .map(|column| {
                std::iter::once(&self.header)
                    .chain(&self.rows)
                    .filter_map(|row| row.get(column))
                    .map(|cell| cell.chars().count())
                    .max()
                    .unwrap_or(0)
                    .max(3)
            })
            .collect();
        let line = |row: &[String]| {
            let cells: Vec<String> = row
                .iter()
                .zip(&width)
                .enumerate()
                .map(|(column, (cell, &width))| {
                    if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
                })
                .collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule: Vec<String> = width
            .iter()
            .enumerate()
            .map(|(column, &width)| {
                if column == 0 { "-".repeat(width) } else { format!("{}:", "-".repeat(width - 1)) }
            })
            .collect();
        let mut text = line(&self.header);
        text.push_str(&line(&rule));
        for row in &self.rows {
            text.push_str(&line(row));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["what", "IOPS"]);
        table.row(vec!["read".into(), "123456".into()]);
        assert_eq!(table.markdown(), "| what |   IOPS |\n| ---- | -----: |\n| read | 123456 |\n");
    }
}
