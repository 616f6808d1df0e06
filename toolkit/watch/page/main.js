const page = document.getElementById("page");
if (DATA.run) buildRun(page);
if (DATA.recordings) buildLesson(page);
if (DATA.dials) buildDials(page);
