// The sidebar has more pages than a screen: show the reader where they are.
const sidebar = document.querySelector(".sidebar-scroll");
const current = sidebar?.querySelector(".current-page");
if (current) {
  const middle = (element) => element.getBoundingClientRect().top + element.clientHeight / 2;
  sidebar.scrollBy({ top: middle(current) - middle(sidebar), behavior: "instant" });
}
