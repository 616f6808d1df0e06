const page = document.getElementById("page");
if (DATA.kind === "lesson") buildLesson(page);
else buildReplay(page);
if (DATA.dials) buildDials(page);
