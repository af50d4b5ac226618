module github.com/softroce/softroce

go 1.26
