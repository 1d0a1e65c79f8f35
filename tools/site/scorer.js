// How the search ranks pages: as Sphinx does by itself, but guides come first, and pages for developers last.
const bonus = { guides: 3, operations: 2, commands: 2, dev: -100, decisions: -100 };

var Scorer = {
  score: ([page, , , , score]) => score + (bonus[page.split("/")[0]] ?? 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
