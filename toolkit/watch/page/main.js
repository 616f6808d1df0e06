const page = document.getElementById("page");
buildLesson(page);
if (DATA.dials) buildDials(page);
